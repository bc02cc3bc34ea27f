"""A run's folder on a node must be that node's alone: looked at once, before anything is kept or removed there.

Retention removes from it whatever the index of the nodes does not list. So it must not be the run's folder on shared
storage under another name; and what two nodes believe to be theirs each is a copy of nothing.
"""

import secrets
from pathlib import Path
from typing import Any

from worker_hooks.protocol.tiers import LOCAL, shelf
from worker_hooks.protocol.trash import TRASH
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.tiers.in_time import InTime
from worker_hooks.training.tiers.nodes import Nodes

_LIMIT_S = 30.0


def demand_own(coordinator: Coordinator, nodes: Nodes, folder: Path, run: Path) -> None:
    """Collective. Raises CheckpointError on every rank. A disk that fails or does not answer is told by the first save.

    The first rank of each node leaves a mark in its folder, and no node may find another one's.
    """
    first, in_time = nodes.first(coordinator.rank), InTime(str(folder))
    mark = folder / f"{TRASH}node-{secrets.token_hex(8)}"

    def on_node(act: Any) -> Any:
        try:
            return in_time(act, _LIMIT_S) if first else None
        except OSError:
            return None

    def marked() -> str | None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        taken = next((place for place in (run, shelf(run, LOCAL)) if place.exists() and place.samefile(folder)), None)
        if taken is None:
            mark.mkdir()
        return str(taken) if taken is not None else None

    taken = next((place for place in coordinator.gather(on_node(marked)) if place is not None), None)
    if taken is not None:
        raise CheckpointError(f"local: {folder} is {taken} on shared storage: give it a folder on the nodes' own disks")
    marks = coordinator.gather(mark.name if first else None)
    others = [name for name in marks if name not in (None, mark.name)]
    found = on_node(lambda: [name for name in others if (folder / name).exists()])
    said = coordinator.gather(found or [])
    on_node(mark.rmdir)
    rank = next((rank for rank, names in enumerate(said) if names), None)
    if rank is not None:
        both = f"{nodes.names[marks.index(said[rank][0])]} and {nodes.names[rank]}"
        raise CheckpointError(
            f"local: {folder} is one folder for {both}: name a disk of each node's own, or put {{node}} into the path"
        )
