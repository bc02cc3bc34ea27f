"""A sign: what a reader found in a line or a counter. A code and the raw line, no judgement of what it means.

What a code means is said by `controller/knowledge`; which codes there are, with their attributes, by `codes`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Scalar = str | int | float | bool

RAW_CHARS = 2048
LAYERS = ("kernel", "gpu", "network", "library", "process", "slurm", "progress", "node")


@dataclass(frozen=True)
class Sign:
    """`code`: see `codes`. `raw`: the line, cleaned and cut to RAW_CHARS. `layer`: one of LAYERS. `source`: the reader
    (`kernel`, `nvml`, `infiniband`, `pcie`, `memory`, `link`, `job_log`, `torchrun`, `flight_recorder`, `stacks`,
    `agent`, `slurm`, `progress`, `history`). `node`: the host that the line names as its own, else where it was read;
    `rank` likewise. `at`: Unix seconds on that host's clock; None where neither line nor reader knows. `count`: how
    many like it were collapsed into this one, the last of them at `last_at`. `attrs`: what `codes` lists, plain values
    only."""

    code: str
    raw: str
    layer: str
    source: str
    node: str | None = None
    rank: int | None = None
    at: float | None = None
    attrs: Mapping[str, Scalar] = field(default_factory=dict)
    count: int = 1
    last_at: float | None = None

    @property
    def family(self) -> str:
        """`xid` of `xid.79`."""
        return self.code.split(".", 1)[0]
