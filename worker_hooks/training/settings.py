"""What the environment says to a rank (docs/formats.md section 2), read once."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_hooks.protocol.identity import FORM, is_run_id, own_run_id, task_run_id
from worker_hooks.training.tiers.nodes import node_name


@dataclass(frozen=True)
class Settings:
    """`generation` is None outside an agent: rank 0 mints one then. `local`: where this node keeps shares of this run,
    None without a node-local tier."""

    root: Path
    run_id: str
    generation: int | None
    run_dir: Path | None
    rank: int
    local_rank: int
    world_size: int
    sabotage: str | None
    node: str
    local: Path | None
    local_every: int
    peer: bool

    @property
    def run(self) -> Path:
        return self.root / self.run_id


def read_settings(
    environ: Mapping[str, str] = os.environ,
    *,
    root: str | Path | None = None,
    run_id: str | None = None,
    local: str | Path | None = None,
    local_every: int | None = None,
    peer: bool | None = None,
) -> Settings:
    """Arguments win over the environment. Raises ValueError for a value that cannot be right."""
    folder = Path(root or environ.get("RELUME_CHECKPOINT_ROOT") or "relume-checkpoints").absolute()
    name = run_id or own_run_id(environ) or environ.get("RELUME_RUN_ID") or _local_run_id(folder, environ)
    if not is_run_id(name):
        raise ValueError(f"run id {name!r} is not of the form {FORM}")
    if environ.get("RELUME_GENERATION"):
        _where_the_agent_minted(environ, folder, name)
    node = node_name(environ)
    base = _local(local or environ.get("RELUME_LOCAL"), node)
    every = _every(local_every, environ)
    if base is not None and every is None:
        raise ValueError(
            f"local={base}: local_every (or RELUME_LOCAL_EVERY) says after how many updates it is saved to"
        )
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
        node=node,
        local=base / name if base is not None else None,
        local_every=(every or 0) if base is not None else 0,
        peer=environ.get("RELUME_PEER", "") not in ("", "0") if peer is None else peer,
    )


def _where_the_agent_minted(environ: Mapping[str, str], folder: Path, name: str) -> None:
    """An agent's generation counts in the folder where it was minted. Elsewhere the run would look superseded."""
    root, run_id = environ.get("RELUME_CHECKPOINT_ROOT"), environ.get("RELUME_RUN_ID")
    if root and os.path.realpath(root) != os.path.realpath(folder):
        raise ValueError(
            f"root={str(folder)!r}: `relume run`, which started this rank, keeps the run in {root}; leave root open, "
            f"or start it as `relume run --checkpoint-root {folder}`"
        )
    if run_id and run_id != name:
        raise ValueError(
            f"run_id={name!r}: `relume run`, which started this rank, knows it as {run_id}; leave run_id open, or set "
            f"RELUME_RUN_ID={name} for `relume run`"
        )


def _local(given: str | Path | None, node: str) -> Path | None:
    if not given:
        return None
    folder = Path(str(given).replace("{node}", node))
    if not folder.is_absolute():
        raise ValueError(f"local={str(given)!r}: the path of a folder on each node, absolute, such as /nvme/{{node}}")
    return folder


def _every(given: int | None, environ: Mapping[str, str]) -> int | None:
    said: Any = environ.get("RELUME_LOCAL_EVERY") or None if given is None else given
    try:
        every = None if said is None else int(said)
    except ValueError:
        every = -1
    if every is not None and every < 0:
        raise ValueError(f"local_every={said!r} (or RELUME_LOCAL_EVERY): a number of updates, 0 for never")
    return every


def _local_run_id(root: Path, environ: Mapping[str, str]) -> str:
    """Without a wrapper the folder is the training job: the same root resumes the same run, each task its own."""
    base = "tj-" + hashlib.sha256(str(root).encode()).hexdigest()[:12]
    task = environ.get("SLURM_ARRAY_TASK_ID", "")
    return task_run_id(base, int(task)) if task.isdecimal() else base
