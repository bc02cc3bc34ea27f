"""What one rank does in one attempt: the parts of this package put together in the right order."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from worker_hooks.protocol.generations import NotNewest
from worker_hooks.protocol.messages import PHASES
from worker_hooks.protocol.tiers import LOCAL, SHARED, Tier
from worker_hooks.training import token
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.data.feed import Feed
from worker_hooks.training.data.feeds import Feeds
from worker_hooks.training.errors import CheckpointError, Superseded
from worker_hooks.training.identity import Identity
from worker_hooks.training.lint.lint import Lint
from worker_hooks.training.occasions.occasions import Occasions
from worker_hooks.training.options import Options
from worker_hooks.training.points import Points
from worker_hooks.training.resuming.elastic import checked
from worker_hooks.training.resuming.resumption import Demands, Resumption
from worker_hooks.training.sabotage import Sabotage
from worker_hooks.training.saving import retention
from worker_hooks.training.saving.save import Saver
from worker_hooks.training.saving.turns import SharedTurns
from worker_hooks.training.state.tracked import Tracked
from worker_hooks.training.telemetry import Telemetry
from worker_hooks.training.tiers.tiers import Tiers


class Attempt:
    def __init__(self, tracked: Tracked, options: Options) -> None:
        self._tracked = tracked
        self._options = options
        self._settings = options.settings()
        self._sabotage = Sabotage(self._settings.sabotage)
        self._coordinator = Coordinator()
        self.rank = self._coordinator.rank
        self.joined = self._coordinator.joined
        self.generation = self._settings.generation or token.take(
            self._settings.run, self._settings.node, self._coordinator
        )
        self.completed = 0
        self.epoch = 0
        self.accumulation = options.accumulation
        self._telemetry = Telemetry(self._settings, self.rank, self.generation)
        identity = Identity(self._settings.run, self.generation, self.rank, self._coordinator.world_size)
        self._tiers = Tiers(self._settings, self._coordinator, identity, self._telemetry, keep=options.keep_local)
        self._saver = Saver(
            identity,
            self._telemetry,
            keep={SHARED: options.keep, LOCAL: options.keep_local},
            config_digest=options.config_digest,
            host_memory=options.host_memory,
            asynchronous=options.asynchronous,
            board=SharedTurns.of_ranks(self._coordinator.world_size, self.generation),
            node=self._settings.node,
            local=self._tiers.local,
        )
        self._lint = Lint(tracked, self._coordinator, self._telemetry, strict=options.strict, waive=options.waive)
        self._points = Points(tracked, self._telemetry, self.rank)
        self._feeds = Feeds({}, self._sabotage)
        self._resumption: Resumption | None = None
        self._occasions = Occasions(
            options.checkpoint_every,
            local_every=self._settings.local_every,
            rank=self.rank,
            world_size=self._coordinator.world_size,
            generation=self.generation,
            completed=lambda: self.completed,
            control=lambda: self._telemetry.control,
            told=lambda kind, what: self._telemetry.event("save_asked", kind=kind, id=what, step=self.completed),
        )
        self._looked_at = 0
        self._stopping = False
        self._early = ""
        self._first = True
        self._prepared = False
        if self.joined:
            self._telemetry.event("rendezvous")

    @property
    def folder(self) -> Path:
        return self._settings.run

    # --- resuming -----------------------------------------------------------------------------------------------

    def restore(self) -> int:
        if self._resumption is not None:
            raise CheckpointError("run.restore() was called twice")
        self._feeds = Feeds(self._tracked.loaders, self._sabotage)
        options = self._options
        demands = Demands(self._exact, checked(options.elastic), options.fresh_start, options.config_digest)
        resumption = Resumption(self._saver.identity, self._tiers.ground, self._telemetry, self._sabotage, demands)
        self._resumption = resumption
        self._points.compare_with(resumption.replayed)
        self._lint.at_restore()
        if self.rank == 0:
            retention.empty_trash(self.folder)
        resumption.begin(self._tracked, self._feeds.by_name, self._saver.set_aside)
        self.completed, self.epoch = resumption.step, resumption.epoch
        self._looked_at = self.completed  # the next boundary is the end of an update, not of half an accumulation
        self.accumulation = resumption.accumulation(self._options.accumulation)
        if resumption.source is not None:
            self._saver.start_from(resumption.source.folder, self.completed)
            self._feeds.take_up(resumption.source.first.data, step=self.completed, accumulation=self.accumulation)
            with suppress(OSError, NotNewest):  # room for the next save is not worth this run
                if self.rank == 0:
                    retention.clear_abandoned(self.folder, self._saver.identity.generation)
                self._tiers.clear_abandoned()
            if not self._feeds.by_name:
                resumption.complete(self._tracked, None, None)
        self._tell_facts(resumption)
        self._occasions.start()
        return self.completed

    def _tell_facts(self, resumption: Resumption) -> None:
        self._telemetry.record(
            "run_facts",
            rank=self.rank,
            total_steps=self._options.total_steps,
            gpus=self._coordinator.world_size if torch.cuda.is_available() else 0,
            parameters=sum(parameter.numel() for parameter in self._tracked.parameters().values()),
            global_batch=None,
            max_step_before=resumption.max_step_before,
            role=self._options.role,
            waived=", ".join(self._lint.waived),
        )

    @property
    def _ready(self) -> bool:
        return self._resumption is not None and self._resumption.ready

    @property
    def _exact(self) -> bool:
        if self._options.exact is not None:
            return self._options.exact
        return all(tensor.device.type == "cpu" for tensor in self._tracked.parameters().values())

    # --- training -----------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self._stopping or bool(self._early) or self._total_reached

    @property
    def _total_reached(self) -> bool:
        total = self._options.total_steps
        return total is not None and self.completed >= total

    def end_early(self, why: str) -> None:
        if not why:
            raise ValueError("run.end_early(why): say why, it is shown beside the run")
        self._early = why[:255]

    def enter_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._feeds.set_epoch(epoch)
        self._tell_samples()

    def _tell_samples(self) -> None:
        """What the ledger of the first loader counts, so far, for the job's page; only `discarded` differs by rank."""
        feed = self._feeds.first
        if feed is not None and self.rank == 0:
            totals = {f"data_{kind}": count for kind, count in feed.ledger.totals.items()}
            self._telemetry.record("run_facts", rank=0, data_unit=feed.ledger.unit, **totals)

    def feed(self, loader: Any) -> Feed | None:
        if self._tracked and self._resumption is None:
            raise CheckpointError("call run.restore() before the first batch")
        return self._feeds.of(loader)

    def open(self, feed: Feed) -> Iterator[Any]:
        """The feed's batches; the first one opened after a load completes the verification."""
        resumption = self._resumption
        if resumption is None or not resumption.ready:
            iterator = feed.open()
            if resumption is not None:
                resumption.complete(self._tracked, self._feeds.name_of(feed), feed)
            return iterator
        return resumption.open_later(self._feeds.name_of(feed), feed)

    def step(self, loss: Any, metrics: dict[str, Any]) -> None:
        if self._tracked and not self._ready:
            raise CheckpointError("the first update came before run.restore(), or past run.batches(the tracked loader)")
        if self._telemetry.control.get("superseded"):
            raise Superseded("relume: the agent says that another attempt took over; this one ends")
        self._saver.check()
        if self._first and self._resumption is None:
            self._telemetry.phase("training")  # nothing was restored, so nobody has said so yet
        self.completed += 1
        self._feeds.updated(self.accumulation)
        step = self.completed
        self._telemetry.step(step)
        if self._first:
            self._telemetry.event("first_step", step=step)
            self._first = False
        if step == (self._resumption.max_step_before if self._resumption else 0) + 1:
            self._telemetry.event("first_new_step", step=step)
        self._points.put(step, loss, metrics)
        self._points.arrive(before=step)

    def delivered(self, feed: Feed) -> None:
        """The training loop has a batch of this feed."""
        self._feeds.delivered(feed)

    def boundary(self) -> None:
        """Between an update and the next batch: save what is due."""
        self._saver.check()
        if self.completed == self._looked_at:
            return
        self._looked_at = self.completed
        plan = self._occasions.due(self.completed, last=self.completed == self._options.total_steps)
        locally = self._occasions.due_locally(self.completed)
        if plan is not None:
            if plan.why:
                self._telemetry.event("save_begun", step=self.completed, why=plan.why)
            # What was asked for goes to shared storage alone: time may be short.
            both = locally and not plan.why
            must = bool(plan.why) or self.completed == self._options.total_steps
            self._save(must=must, tiers=(LOCAL, SHARED) if both else (SHARED,))
            self._stopping = self._stopping or plan.stop
        elif locally:
            self._save(must=False, tiers=(LOCAL,))
        if not self._prepared and self._tracked and self._ready:
            # After the first update: only now a fresh optimizer has its state.
            self._prepared = True
            self._saver.prepare(self._tracked)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._telemetry.phase(name if name in PHASES else "evaluation")
        try:
            yield
        finally:
            self._telemetry.phase("training")

    def _save(self, *, must: bool, tiers: Sequence[Tier] = (SHARED,)) -> None:
        """Every loss is read, checked and handed over before the state is saved: it waits for the device anyway.

        A save that falls due while one is in flight is left out, unless it `must` be: then training waits.
        """
        if must:
            self._saver.settle()
        self._points.arrive()
        self._telemetry.flush()
        self._telemetry.phase("saving")
        data = self._feeds.position(self.epoch, accumulation=self.accumulation, asked=self._options.accumulation)
        self._lint.at_first_save(data["loaders"])
        self._saver.waived = self._lint.waived
        if self._saver.save(self.completed, self._tracked, data, self._points.recent, tiers):
            self._prepared = True
            if SHARED in tiers:  # what happened since stays in the next one's record too
                self._occasions.saved()
                self._points.saved()
        self._telemetry.phase("training")

    def telemetry_failures(self) -> dict[str, Any]:
        found = self._telemetry.failures()
        return {**found, "dropped": found["dropped"] + self._points.dropped}

    # --- the end ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """A clean end: every loss read and checked, a last checkpoint, everything written."""
        self._occasions.close()
        self._points.arrive()
        if self._tracked and self._ready and self.completed > self._saver.last_step:
            self._save(must=True)
        self._saver.finish()
        self._saver.close()
        done = self._total_reached or (bool(self._early) and not self._stopping)
        self._tiers.close(saved=self.completed if done else None)
        self._tell_samples()
        self._telemetry.event("stopped" if self._stopping else "finished", **self._ending())
        self._telemetry.phase("finished")
        self._telemetry.close()

    def abandon(self, error: BaseException) -> None:
        """The end after an exception: a save in flight gets a moment, no new one begins, what is known is written."""
        self._occasions.close()
        self._points.tell(before=self.completed + 1)
        self._saver.close()
        self._tiers.close()
        self._telemetry.phase("failed")
        self._telemetry.event("stopped", reason=f"{type(error).__name__}: {error}"[:2000])
        self._telemetry.close()

    def superseded(self) -> Superseded | None:
        return token.lost(self.folder, self.generation)

    def _ending(self) -> dict[str, Any]:
        if self._stopping:
            return {"reason": self._telemetry.control.get("stop")}
        return {"step": self.completed, **({"early": self._early} if self._early else {})}
