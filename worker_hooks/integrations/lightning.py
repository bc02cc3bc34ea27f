"""Run inside Lightning's loop: `Trainer(callbacks=[RelumeCallback()])`. What is exact and what is not:
docs/checkpoints.md, Lightning and Hugging Face.

Written against the loops of Lightning 2.6. What is not public there is used in few places: the loader is
taken where strategies may wrap it; the counters of the loops, and the question for a validation that Lightning repeats
after a restart, are in `lightning_state`.
"""

import os
import sys
from contextlib import ExitStack
from typing import Any

from worker_hooks import Run
from worker_hooks.integrations.lightning_state import CallbackStates, LoopsState, ModuleState
from worker_hooks.integrations.requirements import demand
from worker_hooks.integrations.stream import Stream
from worker_hooks.training.errors import CheckpointError

demand(__name__, "lightning", "2.6")
from lightning.pytorch.callbacks import Callback, Checkpoint  # noqa: E402

_REFUSED = ("FSDPStrategy", "DeepSpeedStrategy", "XLAStrategy", "XLAFSDPStrategy")


class RelumeCallback(Callback):  # type: ignore[misc]
    """Complete state, verified resume, asynchronous saves, stop and "save now" for `Trainer.fit`.

    `options` are those of `Run`. `total_steps` is Lightning's `max_steps` unless given. The run resumes by itself:
    `ckpt_path` is refused. One `fit` per callback. Raises CheckpointError for what it cannot resume exactly: several
    train loaders, a loader without a length, loaders made anew every few epochs, FSDP 1, DeepSpeed, XLA.
    """

    def __init__(self, **options: Any) -> None:
        _tell_started_from_outside()
        self._options = options
        self._run: Run | None = None
        self._stream: Stream | None = None
        self._stack = ExitStack()
        self._evaluation = ExitStack()
        self._steps = 0  # of Lightning, at the last update
        self._loss: Any = None

    @property
    def run(self) -> Run:
        if self._run is None:
            raise CheckpointError("RelumeCallback: there is a run only during Trainer.fit")
        return self._run

    # --- before training ----------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        self._refuse(trainer)
        if trainer.max_steps != -1 and pl_module.automatic_optimization:
            self._options.setdefault("total_steps", trainer.max_steps)
        self._run = self._stack.enter_context(Run(**self._options))
        _take_loader(trainer, self._begin)
        if trainer.is_global_zero:
            _tell_redundant(trainer)

    def _refuse(self, trainer: Any) -> None:
        kind = type(trainer.strategy).__name__
        if self._run is not None:
            raise CheckpointError("RelumeCallback: one callback follows one Trainer.fit; make another process for more")
        if trainer.reload_dataloaders_every_n_epochs:
            raise CheckpointError("RelumeCallback cannot follow reload_dataloaders_every_n_epochs: new loaders")
        if kind in _REFUSED:
            raise CheckpointError(f"RelumeCallback: {kind} is not supported; use DDPStrategy or ModelParallelStrategy")

    def _begin(self, trainer: Any, loader: Any) -> Stream:
        """Everything exists now, and nothing has been read: resume. Lightning resets its loops to what they hold
        afterwards."""
        if trainer.ckpt_path is not None:
            raise CheckpointError("RelumeCallback resumes by itself: take ckpt_path out of Trainer.fit")
        if self._stream is not None:
            raise CheckpointError("RelumeCallback follows one train loader; combine the data sets into one loader")
        try:
            len(loader)
        except TypeError:
            raise CheckpointError(
                "RelumeCallback: the train loader has no length, and Lightning loads a batch ahead of such a loader, "
                "so the position is not what was trained; give its dataset a __len__"
            ) from None
        loops = LoopsState(trainer)
        self.run.track(
            model=trainer.strategy.model,
            optimizer=list(trainer.optimizers),
            scheduler=[config.scheduler for config in trainer.lr_scheduler_configs] or None,
            scaler=trainer.scaler,
            loader=loader,
            loops=loops,
            callbacks=CallbackStates(trainer, self),
            module=ModuleState(trainer.lightning_module),
            datamodule=trainer.datamodule,
        )
        self.run.restore()
        self._steps = trainer.global_step
        self._stream = Stream(self.run, loader, lambda: _stop(trainer))
        self._stream.epoch = trainer.current_epoch
        if loops.at_epoch_end:
            self._stream.complete()
            loops.go_on_with_next_epoch()
        return self._stream

    # --- training -----------------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Before Lightning makes the epoch's iterator."""
        if self._stream is not None:
            self._stream.epoch = trainer.current_epoch

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """An update may take several batches; their losses come divided by that number."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self._loss = loss if self._loss is None else self._loss + loss
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        loss, self._loss = self._loss, None
        self.run.step(loss=loss)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._run is not None and not trainer.sanity_checking:
            self._evaluation.enter_context(self.run.phase("evaluation"))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._evaluation.close()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._run is not None and not self._run.over and (why := _early(trainer)):
            self._run.end_early(why)
        self._stack.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._stack.__exit__(type(exception), exception, exception.__traceback__)


def _tell_started_from_outside() -> None:
    """The ranks of `relume run` are no tasks of srun, which Lightning takes them for in a Slurm job. It looks when the
    Trainer is made: after this."""
    if "RANK" in os.environ and (run_id := os.environ.get("RELUME_RUN_ID")):
        os.environ.setdefault("TORCHELASTIC_RUN_ID", run_id)


def _early(trainer: Any) -> str:
    """Why Lightning leaves its loop before `max_steps`."""
    if trainer.should_stop:
        return "Lightning was told to stop (should_stop)"
    if trainer.max_epochs not in (None, -1) and trainer.current_epoch >= trainer.max_epochs:
        return f"Lightning's max_epochs={trainer.max_epochs} are done"
    return ""


def _take_loader(trainer: Any, begin: Any) -> None:
    """`process_dataloader` is where a strategy may wrap a loader: after samplers were injected, before any iterator."""
    strategy = trainer.strategy
    process = strategy.process_dataloader

    def process_dataloader(loader: Any) -> Any:
        found = process(loader)
        return begin(trainer, found) if trainer.training else found

    strategy.process_dataloader = process_dataloader


def _stop(trainer: Any) -> None:
    """Whatever minimum of epochs or steps was asked for: this attempt is over, not the training."""
    trainer.should_stop = True
    trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None


def _tell_redundant(trainer: Any) -> None:
    """Once: what Lightning does besides, that nobody needs for a resume."""
    if any(isinstance(callback, Checkpoint) for callback in trainer.callbacks):
        text = "ModelCheckpoint's files are not used to resume; Trainer(enable_checkpointing=False) saves time"
        print(f"relume: note: {text}", file=sys.stderr, flush=True)
    environment = getattr(trainer._accelerator_connector, "cluster_environment", None)
    if getattr(environment, "auto_requeue", False):
        text = "Lightning requeues Slurm jobs by itself too; Trainer(plugins=SLURMEnvironment(auto_requeue=False))"
        print(f"relume: note: {text}", file=sys.stderr, flush=True)
