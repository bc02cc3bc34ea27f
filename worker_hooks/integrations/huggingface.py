"""Run inside the Trainer of transformers: `RelumeCallback().attach(trainer)`. What is exact and what is not:
docs/checkpoints.md, Lightning and Hugging Face.

`attach` is there because a callback of transformers sees neither the trainer nor its loader's iterator, and cannot say
where training begins. Written against the loop of transformers 5: of what is not public, `_init_training_state`,
`_prepare_for_training` and `_run_epoch` are the places where a resumed run differs from a new one.
"""

import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

from worker_hooks import Run
from worker_hooks.integrations.accelerate_loader import tracked_form
from worker_hooks.integrations.requirements import demand
from worker_hooks.integrations.stream import Stream
from worker_hooks.integrations.trainer_state import StateOfTrainer, Unowned
from worker_hooks.training.errors import CheckpointError

demand(__name__, "transformers", "5.24")
demand(__name__, "accelerate", "1.15")
from transformers import TrainerCallback  # noqa: E402

_PRIVATE = ("_init_training_state", "_prepare_for_training", "_run_epoch")


class RelumeCallback(TrainerCallback):  # type: ignore[misc]
    """Complete state, verified resume, asynchronous saves, stop and "save now" for `Trainer.train`.

    `options` are those of `Run`; `total_steps` is the trainer's `max_steps` unless given. The run resumes by itself:
    `resume_from_checkpoint` is refused. One `train` per callback. Raises CheckpointError for what it cannot resume
    exactly: a dataset without a length, FSDP 1, DeepSpeed, XLA, auto_find_batch_size.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._trainer: Any = None
        self._run: Run | None = None
        self._stream: Stream | None = None
        self._state: StateOfTrainer | None = None
        self._stack = ExitStack()
        self._loader: Any = None
        self._prepared: Any = None
        self._first = (0, 0)  # (epoch, updates of it) where this attempt begins
        self._epoch = (0, 0, 0)  # (epoch, its batches, its updates)
        self._loss: Any = None

    def attach(self, trainer: Any) -> "RelumeCallback":
        """Follow `trainer`; once, before `trainer.train()`."""
        missing = [name for name in _PRIVATE if not callable(getattr(trainer, name, None))]
        if missing:
            raise CheckpointError(f"RelumeCallback needs transformers 5.24 or newer: this Trainer has no {missing[0]}")
        if self._trainer is not None:
            raise CheckpointError("RelumeCallback.attach: one callback follows one trainer")
        self._trainer = trainer
        # First, so that the others see the counters as they would be without a resume.
        trainer.callback_handler.callbacks.insert(0, self)
        for name in ("train", "get_train_dataloader", "training_step", "evaluate", *_PRIVATE):
            own = getattr(self, f"_around_{name.removeprefix('_')}")
            setattr(trainer, name, partial(own, getattr(trainer, name)))
        return self

    @property
    def run(self) -> Run:
        if self._run is None:
            raise CheckpointError("RelumeCallback: there is a run only during Trainer.train, after attach(trainer)")
        return self._run

    # --- before training ----------------------------------------------------------------------------------------

    def _around_train(self, original: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._refuse(resume_from_checkpoint)
        try:
            return original(None, *args, **kwargs)
        except BaseException as error:
            self._stack.__exit__(type(error), error, error.__traceback__)
            raise

    def _refuse(self, resume: Any) -> None:
        trainer = self._trainer
        plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
        if self._run is not None:
            raise CheckpointError("RelumeCallback: one callback follows one Trainer.train; make another process")
        if resume:
            raise CheckpointError("RelumeCallback resumes by itself: take resume_from_checkpoint out of Trainer.train")
        if trainer.args.auto_find_batch_size:
            raise CheckpointError("RelumeCallback: auto_find_batch_size is not supported; choose a batch size")
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_xla_enabled:
            raise CheckpointError("RelumeCallback: DeepSpeed and XLA are not supported; use DDP")
        if trainer.is_fsdp_enabled and getattr(plugin, "fsdp_version", 1) == 1:
            raise CheckpointError("RelumeCallback: FSDP 1 is not supported; use FSDP 2 or DDP")

    def _around_get_train_dataloader(self, original: Any) -> Any:
        self._loader = original()
        return self._loader

    def _around_init_training_state(self, original: Any, max_steps: int, updates: int, *args: Any) -> tuple[int, int]:
        """The trainer asks where to begin before its model and optimizer are ready; so they are made ready now, which
        is what it would do next. `updates`: of an epoch."""
        original(max_steps, updates, *args)
        self._prepared = self._trainer._prepare_for_training(max_steps, self._loader, None)
        self._begin(max_steps)
        self._first = divmod(self._trainer.state.global_step, updates)
        return self._first[0], 0

    def _around_prepare_for_training(self, original: Any, *args: Any) -> Any:
        prepared, self._prepared = self._prepared, None
        return original(*args) if prepared is None else prepared

    def _begin(self, max_steps: int) -> None:
        trainer = self._trainer
        try:
            len(self._loader)
        except TypeError:
            raise CheckpointError("RelumeCallback: the train loader has no length, so the epoch is unknown") from None
        if trainer.is_world_process_zero() and trainer.args.save_strategy != "no":
            text = "the Trainer's own checkpoints are not used to resume; save_strategy='no' unless you keep them"
            print(f"relume: note: {text}", file=sys.stderr, flush=True)
        self._run = self._stack.enter_context(Run(**{"total_steps": max_steps, **self._options}))
        self._state = StateOfTrainer(trainer)
        loader = tracked_form(self._loader)
        self._run.track(
            model=trainer.model_wrapped,
            optimizer=getattr(trainer.optimizer, "optimizer", trainer.optimizer),
            scheduler=Unowned(trainer.lr_scheduler),
            scaler=trainer.accelerator.scaler,
            loader=loader,
            trainer=self._state,
        )
        self._run.restore()
        self._stream = Stream(self._run, loader, self._stop)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._state is None:
            raise CheckpointError("RelumeCallback: call attach(trainer) instead of giving it in callbacks=[…]")
        self._state.put_back_loss()

    # --- training -----------------------------------------------------------------------------------------------

    def _around_run_epoch(self, original: Any, **given: Any) -> None:
        """The rest of an epoch is a shorter one; `on_step_end` puts the fraction of the epoch right."""
        assert self._stream is not None
        epoch, batches, updates = given["epoch"], given["steps_in_epoch"], given["num_update_steps_per_epoch"]
        done = self._first[1] if epoch == self._first[0] else 0
        self._epoch, self._stream.epoch = (epoch, batches, updates), epoch
        given["steps_in_epoch"] = batches - done * self._trainer.args.gradient_accumulation_steps
        given["num_update_steps_per_epoch"] = updates - done
        original(**{**given, "train_dataloader": self._stream})
        self.run.boundary()
        self._stream.close()
        if self._trainer.control.should_training_stop and not self.run.over:
            self.run.end_early("transformers was told to stop (should_training_stop)")
        if self._trainer.control.should_training_stop or epoch + 1 >= self._trainer.state.num_train_epochs:
            self._stack.close()  # before the best model may be loaded into this one

    def _around_training_step(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """An update may take several batches; their losses come divided by that number."""
        loss = original(*args, **kwargs)
        self._loss = loss if self._loss is None else self._loss + loss
        return loss

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        epoch, batches, updates = self._epoch
        done = min((state.global_step - epoch * updates) * args.gradient_accumulation_steps, batches)
        state.epoch = epoch + done / batches
        loss, self._loss = self._loss, None
        self.run.step(loss=loss)
        if state.global_step != self.run.completed:
            raise CheckpointError(f"the trainer counts {state.global_step} updates, the run {self.run.completed}")

    def _around_evaluate(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._run is None or not self._trainer.is_in_train:
            return original(*args, **kwargs)
        with self._run.phase("evaluation"):
            return original(*args, **kwargs)

    def _stop(self) -> None:
        self._trainer.control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stack.close()
