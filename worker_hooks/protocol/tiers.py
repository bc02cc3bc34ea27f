"""Where the checkpoints of a tier are listed: the run's folder for shared storage, `local/` in it for the index of what
lies on the nodes. A run id begins with `tj-`, so a folder's parent tells which of the two it is in.
"""

from pathlib import Path
from typing import Literal

Tier = Literal["shared", "local"]
SHARED: Tier = "shared"
LOCAL: Tier = "local"
TIERS: tuple[Tier, ...] = (SHARED, LOCAL)
# Where a resume read a share: on its own node, brought from another one, or on shared storage.
PLACES = ("local", "peer", "shared")


def shelf(run: Path, tier: Tier) -> Path:
    """The folder in which that tier's checkpoint folders count."""
    return run / LOCAL if tier == LOCAL else run


def tier_of(folder: Path) -> Tier:
    """Of a checkpoint folder on shared storage."""
    return LOCAL if folder.parent.name == LOCAL else SHARED


def run_of(folder: Path) -> Path:
    """The run that a checkpoint folder on shared storage belongs to."""
    return folder.parent.parent if tier_of(folder) == LOCAL else folder.parent
