"""What a user may ask of a run: the options of `Run`, whose docstring says what each means."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_hooks.training.files.digests import value_digest
from worker_hooks.training.settings import Settings, read_settings


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

    @property
    def config_digest(self) -> str | None:
        return None if self.config is None else value_digest(self.config, "sha256")

    def settings(self) -> Settings:
        """With what the environment says where these leave it open. Raises ValueError."""
        return read_settings(
            root=self.root, run_id=self.run_id, local=self.local, local_every=self.local_every, peer=self.peer
        )
