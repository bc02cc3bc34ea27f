"""What Lightning knows beside model, optimizers and schedulers: its loops' counters, callbacks, the module's own."""

from typing import Any

from worker_hooks.training.errors import CheckpointError


class LoopsState:
    """Epochs, batches and optimizer steps, as Lightning's own loops keep them in a checkpoint."""

    def __init__(self, trainer: Any) -> None:
        self.at_epoch_end = False
        self._loop = trainer.fit_loop
        if not callable(getattr(self._loop.epoch_loop, "_should_check_val_fx", None)):
            raise CheckpointError("RelumeCallback needs Lightning 2.6: the loops of this version are others")

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._loop.state_dict()
        # A loader's own state is kept with the position in the data.
        state["state_dict"] = {key: item for key, item in state["state_dict"].items() if key != "combined_loader"}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loop.load_state_dict(state)
        progress = self._loop.epoch_progress.current
        self.at_epoch_end = progress.ready == progress.processed
        if not self.at_epoch_end:
            self._validate_once()

    def go_on_with_next_epoch(self) -> None:
        """Not a restart in Lightning's sense, which would end at once in the epoch that is over."""
        self._loop.restarting = False
        self._loop._loaded_from_state_dict = self._loop.epoch_loop._loaded_from_state_dict = False

    def _validate_once(self) -> None:
        """A checkpoint lies where the next batch is asked for: a validation due before that is over. After a restart
        Lightning asks first of all whether it is due; the answer to that one question is no."""
        epoch_loop = self._loop.epoch_loop

        def over(_fetcher: Any) -> bool:
            del epoch_loop._should_check_val_fx
            return False

        epoch_loop._should_check_val_fx = over


class CallbackStates:
    """The states of the other callbacks, handed over as they are. What a callback makes of its state is its own (some
    keep time, some a folder that every start names anew), so until training goes on this says what was loaded."""

    def __init__(self, trainer: Any, own: Any) -> None:
        self._callbacks = [callback for callback in trainer.callbacks if callback is not own]
        self._trainer = trainer
        self._loaded: tuple[int, dict[str, Any]] | None = None

    def state_dict(self) -> dict[str, Any]:
        if self._loaded is not None and self._loaded[0] == self._trainer.global_step:
            return self._loaded[1]
        found = {callback.state_key: callback.state_dict() for callback in self._callbacks}
        return {key: state for key, state in found.items() if state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for callback in self._callbacks:
            if callback.state_key in state:
                callback.load_state_dict(dict(state[callback.state_key]))
        self._loaded = (self._trainer.global_step, state)


class ModuleState:
    """What the module itself adds to Lightning's checkpoints (`on_save_checkpoint`). The hook sees an empty
    `state_dict`: the parameters are kept by Relume."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def state_dict(self) -> dict[str, Any]:
        checkpoint: dict[str, Any] = {"state_dict": {}}
        self._module.on_save_checkpoint(checkpoint)
        checkpoint.pop("state_dict", None)
        return checkpoint

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._module.on_load_checkpoint({**state, "state_dict": {}})
