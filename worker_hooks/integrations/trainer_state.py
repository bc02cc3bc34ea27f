"""What the Trainer of transformers knows beside model, optimizer and scheduler: counters, logs, callbacks' states."""

from copy import deepcopy
from typing import Any

import torch

_COUNTERS = (
    *("epoch", "global_step", "num_input_tokens_seen", "total_flos", "log_history"),
    *("best_metric", "best_global_step", "best_model_checkpoint"),
)


class Unowned:
    """A scheduler's state without its optimizer, which is accelerate's wrapper and not the one that is tracked."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._scheduler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(state)


class StateOfTrainer:
    """For `run.track`. `loss`: the sum since the last log, so that logs do not show where a run was resumed.

    Until the first update after a load this says what was loaded: an evaluation at the start adds to the logs.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        if self._loaded is not None and self._loaded["counters"]["global_step"] == trainer.state.global_step:
            return self._loaded
        loss = getattr(trainer, "_tr_loss", None)
        return {
            "counters": {name: deepcopy(getattr(trainer.state, name)) for name in _COUNTERS},
            "flos": trainer.current_flos,
            "loss": torch.tensor(0.0) if loss is None else loss,
            "logged_at": getattr(trainer, "_globalstep_last_logged", 0),
            "callbacks": {name: state.state()["attributes"] for name, state in self._callbacks().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = state
        for name, value in state["counters"].items():
            setattr(self._trainer.state, name, deepcopy(value))
        self._trainer.current_flos = state["flos"]
        for name, callback in self._callbacks().items():
            for key, value in state["callbacks"].get(name, {}).items():
                setattr(callback, key, value)

    def put_back_loss(self) -> None:
        """The trainer begins each training with an empty sum. What it reports of the whole training in the end is of
        the updates since the resume, so what was summed up before does not count there."""
        if self._loaded is None:
            return
        trainer, loss = self._trainer, self._loaded["loss"]
        trainer._tr_loss = loss.to(trainer.args.device).clone()
        trainer._total_loss_scalar = -float(loss)
        trainer._globalstep_last_logged = self._loaded["logged_at"]

    def _callbacks(self) -> dict[str, Any]:
        """Those with a state, by class and place."""
        known = [item for item in self._trainer.callback_handler.callbacks if callable(getattr(item, "state", None))]
        return {f"{type(item).__name__}.{place}": item for place, item in enumerate(known)}
