"""Which parts of a full training state a set of keys amounts to. A key counts by its exact name, never by likeness:
`optimizer_state_dit` is no optimizer, and is named beside what it probably was meant to be.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PARTS = ("model", "optimizer", "scheduler", "scaler", "rng", "rng of each rank", "data position", "step")

_NAMES: dict[str, tuple[str, ...]] = {
    "model": (
        *("model", "state_dict", "model_state_dict", "model_state", "module", "net", "network", "params", "weights"),
        "ema",
    ),
    "optimizer": (
        *("optimizer", "optimizers", "optimizer_state_dict", "optimizer_states", "optimizer_state", "optim", "opt"),
        *("optim_state_dict", "last_optimizer_state", "optimizer_dict"),
    ),
    "scheduler": (
        *("scheduler", "schedulers", "lr_scheduler", "lr_schedulers", "scheduler_state_dict", "scheduler_state"),
        *("lr_scheduler_state_dict", "sched", "lr_sched", "opt_param_scheduler"),
    ),
    "scaler": (
        *("scaler", "grad_scaler", "scaler_state_dict", "grad_scaler_state_dict", "amp", "loss_scaler"),
        *("native_amp_scaling_state", "MixedPrecision", "MixedPrecisionPlugin", "amp_scaling_state"),
    ),
    "rng": (
        *("rng", "rng_state", "rng_states", "random_state", "random_states", "random", "rngs"),
        *("torch_rng_state", "cuda_rng_state", "rng_state_dict"),
    ),
    "data position": (
        *("data", "sampler", "sampler_state", "dataloader", "dataloaders", "dataloader_state", "train_dataloader"),
        *("data_position", "data_state", "loader", "loaders", "consumed_samples", "consumed_train_samples"),
        *("train_iterator", "combined_loader"),
    ),
    "step": (
        *("step", "global_step", "steps", "iteration", "iter", "iterations", "num_updates", "train_step"),
        *("current_step", "total_steps", "step_count"),
    ),
}
_OF = {name: part for part, names in _NAMES.items() for name in names}
# Said by others and no part of a state that a resume needs.
_HARMLESS = (
    *(
        "epoch",
        "epochs",
        "version",
        "pytorch-lightning_version",
        "loops",
        "callbacks",
        "hparams_name",
        "args",
        "config",
    ),
    *("hyper_parameters", "datamodule_hyper_parameters", "hparams_type", "best_metric", "best_acc", "loss", "metrics"),
    *("best_score", "cfg", "options", "extra_state", "train_state", "arch", "best_acc1"),
)
_ALIKE = 0.8


@dataclass(frozen=True)
class Contents:
    """`unknown`: keys that are no part, with what they resemble. `empty`: parts whose key holds nothing."""

    present: tuple[str, ...]
    lacks: tuple[str, ...]
    empty: tuple[str, ...] = ()
    unknown: tuple[tuple[str, str | None], ...] = ()

    @property
    def full(self) -> bool:
        """Enough for a resume that is the same run."""
        return not self.lacks


def contents_of(keys: Mapping[str, object]) -> Contents:
    """What top-level keys with their values amount to. A value that is None or an empty container is no part."""
    present, empty, unknown = set(), set(), []
    for key, value in keys.items():
        part = _OF.get(key)
        if part is None:
            if key not in _HARMLESS:
                unknown.append((key, resembles(key)))
        elif value is None or value in ({}, [], ()):
            empty.add(part)
        else:
            present.add(part)
            if part == "rng" and isinstance(value, list | tuple) and len(value) > 1:
                present.add("rng of each rank")
    return contents(present, empty - present, unknown)


def contents(
    present: Iterable[str], empty: Iterable[str] = (), unknown: Iterable[tuple[str, str | None]] = ()
) -> Contents:
    """From parts already known."""
    have = set(present)
    return Contents(
        tuple(part for part in PARTS if part in have),
        tuple(part for part in PARTS if part not in have),
        tuple(part for part in PARTS if part in set(empty)),
        tuple(unknown),
    )


def part_of(key: str) -> str | None:
    """The part that this exact key holds."""
    return _OF.get(key)


def resembles(key: str) -> str | None:
    """The part that a key with a slip in it was probably meant to be."""
    near = difflib.get_close_matches(key[:100], _OF, n=1, cutoff=_ALIKE)
    return _OF[near[0]] if near else None
