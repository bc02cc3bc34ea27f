"""What a user may ask of a run: the options of `Run`, whose docstring says what each means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from typing import Any

from worker_hooks.training.files.digests import value_digest
from worker_hooks.training.settings import Settings, read_settings

_LEAST = {
    **{"checkpoint_every": 0, "keep": 1, "total_steps": 1, "accumulation": 1, "local_every": 0, "keep_local": 1},
    "host_memory": 1,
}


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
    local: str | Path | None = None
    local_every: int | None = None
    peer: bool | None = None
    keep_local: int = 2

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None or (name == "checkpoint_every" and isinstance(value, str)):
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r}: a whole number, at least {least}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Options":
        """Raises TypeError for a name that is no option, ValueError for a value that cannot be right."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                near = get_close_matches(name, known, 1)
                meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
                raise TypeError(f"Run has no option {name!r}: {meant} (docs/checkpoints.md, Options)")
        return cls(**given)

    @property
    def config_digest(self) -> str | None:
        try:
            return None if self.config is None else value_digest(self.config, "sha256")
        except (TypeError, ValueError) as error:
            raise ValueError(f"config: only what JSON holds can be digested ({error})") from None

    def settings(self) -> Settings:
        """With what the environment says where these leave it open. Raises ValueError."""
        return read_settings(
            root=self.root, run_id=self.run_id, local=self.local, local_every=self.local_every, peer=self.peer
        )
