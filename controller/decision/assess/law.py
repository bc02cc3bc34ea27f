"""What a drain needs: one hard code, two independent layers, three independent reporters that name one node, or a
failure of one node that its equals do not share. Nothing else asks for one."""

from collections.abc import Iterable, Mapping, Sequence

from controller.decision.assess.roles import WEAK, weight
from controller.decision.assess.view import View, before, onset
from controller.decision.evidence import JOB, Evidence

REPORTERS = 3
# More nodes than this with one fault at one moment, and at least half of the job's: what joins them has failed.
FEW_NODES = 2
SAME_MOMENT_S = 300.0
HARDWARE = frozenset({"gpu_hardware", "node_failure", "fabric"})


def accuses(view: View, item: Evidence) -> bool:
    """Whether it speaks against the machine that it is about; also what says it only beside others."""
    row = view.row(item)
    return row is not None and row.verdict in HARDWARE and weight(view, item) in ("hard", "strong", "weak")


def two_layers(view: View, accusing: Iterable[Evidence]) -> bool:
    """Two layers that cannot have heard it from each other: what the job's processes say counts once, whatever they
    are. A weak sign counts only beside a strong one."""
    against = [item for item in accusing if accuses(view, item)]
    layers = {"job" if item.origin == JOB else item.layer for item in against}
    return len(layers) >= 2 and any(weight(view, item) != WEAK for item in against)


def many_at_once(view: View, by_node: Mapping[str, Sequence[Evidence]]) -> bool:
    """Many nodes with the same job at the same moment are one incident of the job, or of what joins them."""
    return many_of(len(view.nodes), by_node)


def many_of(nodes: int, by_node: Mapping[str, Sequence[Evidence]]) -> bool:
    """The same for a job of so many nodes."""
    if len(by_node) <= FEW_NODES or 2 * len(by_node) < nodes:
        return False
    begins = [onset(items) for items in by_node.values()]
    known = [at for at in begins if at is not None]
    return not known or not before(min(known), max(known), SAME_MOMENT_S)


def equals_are_well(view: View, failing: Iterable[str]) -> bool:
    """Whether it is known that others did the same without the fault."""
    return bool(view.healthy - set(failing))
