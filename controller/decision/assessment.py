"""What diagnosis says: the cause class, whom it suspects, how sure it is, what to do, and which evidence carries it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

HIGH, MEDIUM, LOW = "high", "medium", "low"
CONFIDENCE = {HIGH: 0.9, MEDIUM: 0.6, LOW: 0.3}


@dataclass(frozen=True)
class NodeView:
    """One node's own verdict, where nodes differ (two faults in one set of evidence)."""

    verdict: str
    drain: bool = False
    exclude: bool = False
    xid: int | None = None
    pci: str = ""
    why: str = ""


@dataclass(frozen=True)
class Assessment:
    """`verdict`: one of `meanings.VERDICTS`. `confidence`: high, medium, low. `drain`, `exclude`: node names (a drained
    node is always excluded). `withheld`: nodes that would be drained if the job's own word were trusted. `requeue`:
    True, False, or a sentence where it depends. `budget`: infra, user, none. `proof`: ids of the evidence that carries
    it; `cascade`: ids of consequences; `clears`: ids that speak for somebody. `node_actions`: node to what should be
    done with it besides (a reset when idle, ...), in words. `follow_up`: checks that should be made, in words. `stop`:
    the sentence for a person when nothing is to be requeued. `onset`: estimate of when it began."""

    verdict: str
    confidence: str
    why: str
    suspect_nodes: tuple[str, ...] = ()
    suspect_ranks: tuple[int, ...] = ()
    suspect_gpu: str = ""
    xid: int | None = None
    drain: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    requeue: bool | str = True
    budget: str = "none"
    requeue_delay_s: float = 0.0
    requeue_limit: int | None = None
    node_actions: Mapping[str, str] = field(default_factory=dict)
    follow_up: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    proof: tuple[str, ...] = ()
    cascade: tuple[str, ...] = ()
    clears: tuple[str, ...] = ()
    per_node: Mapping[str, NodeView] = field(default_factory=dict)
    onset: float | None = None
    stop: str = ""
