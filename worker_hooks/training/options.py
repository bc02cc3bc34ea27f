"""What a user may ask of a run: the options of `Run`, whose docstring says what each means."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Options:
    root: str | Path | None = None
    run_id: str | None = None
    checkpoint_every: int | str = 100
    keep: int = 3
    total_steps: int | None = None
    exact: bool | None = None
    elastic: str | None = None
    accumulation: int = 1
    fresh_start: bool = False
    role: str | None = None
    config: Any = None
    strict: bool = True
    waive: Sequence[str] = ()
    host_memory: int | None = None
    asynchronous: bool = True
