"""What the lint of the tracked state can find: stable codes, which users waive by name (docs/checkpoints.md)."""

from collections.abc import Iterable
from dataclasses import dataclass

MISSING, NOTE = "missing", "note"

CODES = {
    "data_position": "nobody knows which samples the run has seen",
    "device": "a tensor lives on a device that this process does not have",
    "ema": "an average is in use and not tracked, or shares its memory with the live model",
    "iterator": "an iterator was made before the loader's state is loaded",
    "late": "tracked after the restore",
    "layout": "several ranks, and a model that nothing keeps equal or sharded",
    "optimizer": "the optimizer that updates a tracked model is not tracked",
    "optimizer_parameters": "an optimizer updates parameters of no tracked model",
    "replicas": "a value that should be equal on every rank is not",
    "scaler": "a GradScaler is in use and not tracked",
    "scheduler": "a learning rate scheduler is in use and not tracked",
    "scheduler_function": "a scheduler's function cannot be stored",
    "tensor": "a tensor whose bytes cannot be stored",
    "unsaved_buffers": "buffers that the model leaves out of its state",
    "value": "a value that cannot be stored",
}
# Without these nothing could be written, whatever the user accepts.
UNWAIVABLE = frozenset({"tensor", "value"})
_NAMED = 4


@dataclass(frozen=True)
class Finding:
    """`where` is the name under which it is tracked; `text` says what is wrong and what to do."""

    code: str
    where: str
    text: str
    level: str = MISSING

    def plain(self) -> list[str]:
        return [self.code, self.where, self.text, self.level]


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    known = list(names)
    more = len(known) - _NAMED
    return ", ".join(known[:_NAMED]) + (f" and {more} more" if more > 0 else "")
