"""What the environment says to a rank (docs/formats.md section 2), read once."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from worker_hooks.protocol.identity import FORM, is_run_id, own_run_id, task_run_id


@dataclass(frozen=True)
class Settings:
    """`generation` is None outside an agent: rank 0 mints one then."""

    root: Path
    run_id: str
    generation: int | None
    run_dir: Path | None
    rank: int
    local_rank: int
    world_size: int
    sabotage: str | None

    @property
    def run(self) -> Path:
        return self.root / self.run_id


def read_settings(
    environ: Mapping[str, str] = os.environ, *, root: str | Path | None = None, run_id: str | None = None
) -> Settings:
    """Arguments win over the environment. Raises ValueError for a value that cannot be right."""
    folder = Path(root or environ.get("RELUME_CHECKPOINT_ROOT") or "relume-checkpoints").absolute()
    name = run_id or own_run_id(environ) or environ.get("RELUME_RUN_ID") or _local_run_id(folder, environ)
    if not is_run_id(name):
        raise ValueError(f"run id {name!r} is not of the form {FORM}")
    generation = environ.get("RELUME_GENERATION")
    run_dir = environ.get("RELUME_RUN_DIR")
    return Settings(
        root=folder,
        run_id=name,
        generation=int(generation) if generation else None,
        run_dir=Path(run_dir) if run_dir else None,
        rank=int(environ.get("RANK", "0")),
        local_rank=int(environ.get("LOCAL_RANK", environ.get("RANK", "0"))),
        world_size=int(environ.get("WORLD_SIZE", "1")),
        sabotage=environ.get("RELUME_SABOTAGE") or None,
    )


def _local_run_id(root: Path, environ: Mapping[str, str]) -> str:
    """Without a wrapper the folder is the training job: the same root resumes the same run, each task its own."""
    base = "tj-" + hashlib.sha256(str(root).encode()).hexdigest()[:12]
    task = environ.get("SLURM_ARRAY_TASK_ID", "")
    return task_run_id(base, int(task)) if task.isdecimal() else base
