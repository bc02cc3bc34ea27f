"""`Run`: the training script's side of Relume. Public contract: design section 10, docs/formats.md."""

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from worker_hooks.training import comms
from worker_hooks.training.attempt import Attempt
from worker_hooks.training.data.feed import Feed
from worker_hooks.training.errors import CheckpointError, RestartedFromScratch, Superseded, VerificationFailed
from worker_hooks.training.hints import Hints
from worker_hooks.training.options import Options
from worker_hooks.training.state.tracked import Tracked


class Run:
    """One attempt of a training job, in one rank.

    Options: `root` and `run_id` (default: the environment, else ./relume-checkpoints), `checkpoint_every` updates (0:
    only at the end; "auto": as often as the controller works out), `keep` committed checkpoints, `total_steps` (batches
    end there), `exact` (replayed losses must be equal to the bit; default on CPU), `elastic` (what another number of
    ranks means for the batch and the learning rate: "keep_global_batch", "scale_lr:linear", "scale_lr:sqrt" or
    "keep_lr"; without it such a resume is refused), `accumulation` (batches per update; ask `run.accumulation`), `role`
    (what this rank does, such as `stage 0`: its `compute_s` is compared with ranks of that role only), `config` (JSON,
    its digest is stored), `host_memory` (the most bytes that a rank stages at a time; a larger share is written in
    pieces while training waits), `asynchronous` (False: training waits until what it saved is written), `strict` (a
    state that is not complete ends the run) and `waive` (codes of what may be missing, such as `["scheduler"]`:
    docs/checkpoints.md), `local` (a folder on each node, with `{node}` for its name, that is saved to as well every
    `local_every` updates; `keep_local` of these stay, and `peer=True` copies each share to the next node:
    docs/checkpoints.md, Tiers). Objects given by name are tracked, and `with` then restores them.

    A run whose checkpoints are all bad does not begin again at step 0 by itself: that is a RestartedFromScratch error,
    unless `fresh_start=True` allows it.
    """

    def __init__(
        self,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        loader: Any = None,
        ema: Any = None,
        scaler: Any = None,
        extra: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._tracked = Tracked()
        asked = Options.of(options)
        self._attempt = Attempt(self._tracked, asked)
        self._hints = Hints(speaks=self._attempt.rank == 0, total_steps=asked.total_steps)
        self._loops = 0  # of `batches`, one inside the other
        self._phases = 0
        self.track(
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            loader=loader,
            ema=ema,
            scaler=scaler,
            **(extra or {}),
        )

    @classmethod
    def launch(cls, main: "Callable[[Run], None]", **options: Any) -> None:
        """Join the process group that the environment describes, run `main(run)`, leave it on a clean end."""
        with comms.process_group():
            with cls(**options) as run:
                main(run)
            # A DDP model that outlives its process group can hang in its destructor, waiting for a gloo thread that
            # waits for the GIL.
            del run
            gc.collect()

    @property
    def completed(self) -> int:
        """Updates done since the very first attempt."""
        return self._attempt.completed

    @property
    def over(self) -> bool:
        """No update should follow: the run was asked to stop, ended early, or its `total_steps` are done."""
        return self._attempt.over

    @property
    def accumulation(self) -> int:
        """Batches of this rank that make one update: the option's, unless `elastic` found another number."""
        return self._attempt.accumulation

    @property
    def generation(self) -> int:
        return self._attempt.generation

    @property
    def folder(self) -> Path:
        """Where this training job keeps its checkpoints and loss records."""
        return self._attempt.folder

    def telemetry_failures(self) -> dict[str, Any]:
        """How many records were lost, and the last error: telemetry never raises, so it can be asked."""
        return self._attempt.telemetry_failures()

    # --- before training ----------------------------------------------------------------------------------------

    def track(
        self,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        loader: Any = None,
        ema: Any = None,
        scaler: Any = None,
        **extra: Any,
    ) -> None:
        """What the run consists of: objects, lists or dicts of them. Extras need state_dict and load_state_dict."""
        named = {
            "model": model,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "loader": loader,
            "ema": ema,
            "scaler": scaler,
        }
        for name, value in {**named, **extra}.items():
            self._tracked.add(name, value)

    def restore(self) -> int:
        """Resume from the newest checkpoint that verifies; returns its step, 0 for a fresh run. Collective.

        Call it before the first batch. Raises CheckpointError, VerificationFailed.
        """
        return self._attempt.restore()

    # --- training -----------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """Epoch numbers from the restored one on; tells samplers. Ends early on a stop request or at total_steps."""
        attempt = self._attempt
        self._hints.epochs()
        for epoch in range(attempt.epoch, count):
            if attempt.over:
                return
            attempt.enter_epoch(epoch)
            yield epoch

    def batches(self, loader: Any) -> Iterator[Any]:
        """The rest of this epoch's batches. A loader that is not tracked is passed through.

        The loader's iterator is made by this call; the first one after a resume completes the verification.
        """
        feed = self._attempt.feed(loader)
        if feed is None:
            return iter(loader)
        return iter(()) if self._attempt.over else self._batches(feed, self._attempt.open(feed))

    def _batches(self, feed: Feed, iterator: Iterator[Any]) -> Iterator[Any]:
        self._loops += 1
        inner = self._loops > 1 or self._phases > 0
        if not inner:
            self._hints.opened(feed, self._attempt.epoch, self.completed)
        given = 0
        try:
            for batch in iterator:
                self._attempt.delivered(feed)
                given += 1
                yield batch
                if not inner:
                    self._attempt.boundary()
                if self._attempt.over:
                    return
            if given and not inner:
                self._hints.over(self.completed)
        finally:
            self._loops -= 1

    def step(self, loss: torch.Tensor | float | None = None, **metrics: Any) -> None:
        """An optimizer update is complete. Never waits for a device, adds no collective. `metrics`: any numbers by
        name; `compute_s` are the seconds of this rank's own work in this update, without its waits for others.

        A checkpoint that is due is taken when the loop asks for the next batch, so what follows `step` in the loop's
        body still belongs to this update: `batches` of another loader in there, too. Outside `batches` it is taken at
        once.
        """
        if not self._tracked:
            self._hints.untracked()
        self._attempt.step(loss, metrics)
        if not self._loops:
            self._attempt.boundary()

    def boundary(self) -> None:
        """The loop has nothing left to do of its last update: a checkpoint that is due is taken now.

        `batches` says so by itself when it is asked for the next batch. A loop of somebody else, which leaves an epoch
        without asking, says it here.
        """
        self._attempt.boundary()

    def end_early(self, why: str) -> None:
        """Training is complete before `total_steps`, by the script's own judgement: the run is `over` from here on.

        Every rank says it after the same update. Without it a run that ends before its `total_steps` is incomplete,
        whatever Slurm says, and a person is asked. `why` is shown. Raises ValueError where it is empty.
        """
        self._attempt.end_early(why)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A stretch without updates, such as `evaluation`, that the agent should know about. No batch in it is the end
        of an update: weights may stand in for others meanwhile."""
        self._phases += 1
        try:
            with self._attempt.phase(name):
                yield
        finally:
            self._phases -= 1

    # --- with -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> "Run":
        if self._tracked:
            try:
                self.restore()
            except BaseException as error:
                self._abandon(error)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """A clean end saves once more; an exception never saves, because the other ranks may be elsewhere."""
        if error is None:
            try:
                self._attempt.finish()
                return
            except BaseException as late:
                self._abandon(late)
                raise
        self._abandon(error)

    def _abandon(self, error: BaseException) -> None:
        self._attempt.abandon(error)
        if self._attempt.joined and not isinstance(error, Superseded | VerificationFailed):
            # A rank that noticed it first has left, and the others' collectives fail.
            error = self._attempt.superseded() or error
        if isinstance(error, Superseded | VerificationFailed):
            print(error, file=sys.stderr, flush=True)
            if self._attempt.joined:
                comms.end_process(error)


__all__ = ["CheckpointError", "RestartedFromScratch", "Run", "Superseded", "VerificationFailed"]
