"""What one judge says. The merge makes the assessment of it; the laws of trust and of what is out already are there."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.decision.assessment import NodeView
from controller.decision.evidence import Evidence

ALREADY_OUT = frozenset({"DRAIN", "FAIL"})


@dataclass(frozen=True)
class Charge:
    """What is asked for one node. `by`: what accuses it. `drain`: needs one of the grounds of `law`; a drained node is
    excluded too."""

    node: str
    by: tuple[Evidence, ...]
    drain: bool = False
    exclude: bool = True


@dataclass(frozen=True)
class Opinion:
    """As in Assessment; `proof`: the pieces that carry it. `charges`: nodes to be kept away."""

    verdict: str
    confidence: str
    why: str
    proof: tuple[Evidence, ...] = ()
    suspects: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    charges: tuple[Charge, ...] = ()
    gpu: str = ""
    xid: int | None = None
    requeue: bool | str = True
    budget: str = "infra"
    delay_s: float = 0.0
    limit: int | None = None
    actions: Mapping[str, str] = field(default_factory=dict)
    follow_up: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    per_node: Mapping[str, NodeView] = field(default_factory=dict)
    stop: str = ""
    onset: float | None = None
