"""Which rank of which attempt of which training job writes."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Identity:
    run: Path
    generation: int
    rank: int
    world_size: int
