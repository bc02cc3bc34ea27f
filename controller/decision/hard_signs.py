"""Hard signs that nobody has answered yet: of a node that this training job is on, or was on when it was last hit.

Only what does not rest on the job's own word counts here: a sensor's sign may come after the job died, and was requeued
as a process that died. Answered is what came before a hold of the node, or before an incident that suspects it, and
what a reboot has ended.
"""

from collections.abc import Collection, Iterable

from controller.decision.assess import gpus, law
from controller.decision.assess.roles import HARD, weight_by
from controller.decision.evidence import SENSOR, Evidence
from controller.decision.facts import NodeFact, SubjectFacts
from controller.decision.findings import MANY_NODES, NODE_SIGN, Finding, clue_of
from controller.decision.policy import Policy


def hard_sign(subject: SubjectFacts, now: float, policy: Policy) -> Finding | None:
    """Hardware of a node that the job runs on has failed, by its sensor's word, whatever the job says of itself yet."""
    attempt = subject.live_attempt
    if attempt is None or attempt.finished or subject.requeued_since or subject.slurm is None:
        return None
    found = unanswered(subject, attempt.nodes, policy)
    if not any(_settled(e, now, policy) for e in found):
        return None
    by_node = _by_node(found)
    many = law.many_of(len(attempt.nodes), by_node)
    said = "; ".join(f"{e.node}: {meaning_of(e, policy)}" for e in found[:3])
    first = min((e.at for e in found if e.at is not None), default=now)
    return Finding(
        MANY_NODES if many else NODE_SIGN,
        said,
        suspects=tuple(sorted(by_node)),
        clues=tuple(clue_of(e, "accuses", now) for e in found),
        fault_at=first,
    )


def late_signs(subject: SubjectFacts, policy: Policy) -> tuple[Evidence, ...]:
    """Of nodes that the last fault hit and that the job has left since: they can only be held."""
    fault, attempt = subject.last_fault, subject.live_attempt
    if fault is None or fault.state in ("observed_only", "open", "diagnosed"):
        return ()
    here = set(attempt.nodes) if attempt is not None and not subject.requeued_since else set()
    left = [name for name in fault.nodes if name not in here]
    late = tuple(e for e in unanswered(subject, left, policy) if (e.received_at or 0.0) > fault.detected_at)
    return () if law.many_of(len(fault.nodes), _by_node(late)) else late


def unanswered(subject: SubjectFacts, names: Collection[str], policy: Policy) -> tuple[Evidence, ...]:
    """Hard signs of sensors about these nodes, newest first as the facts have them; not those of other jobs' GPUs."""
    own, _ = gpus.split(subject.evidence, subject.gpus)
    return tuple(e for e in own if e.node in names and _hard(e, policy) and _is_open(subject, e))


def meaning_of(piece: Evidence, policy: Policy) -> str:
    row = policy.knowledge.of(piece.code)
    return row.text if row is not None and row.text else piece.raw[:120]


def _by_node(pieces: Iterable[Evidence]) -> dict[str, tuple[Evidence, ...]]:
    found: dict[str, tuple[Evidence, ...]] = {}
    for piece in pieces:
        if piece.node is not None:
            found[piece.node] = (*found.get(piece.node, ()), piece)
    return found


def _hard(piece: Evidence, policy: Policy) -> bool:
    row = policy.knowledge.of(piece.code)
    about_node = row is not None and row.about == "node"
    return piece.origin == SENSOR and about_node and weight_by(policy.knowledge, piece) == HARD


def _is_open(subject: SubjectFacts, piece: Evidence) -> bool:
    node = subject.nodes.get(piece.node or "")
    if node is None or node.hold_state is not None:
        return False
    return not _answered(node, piece) and not _rebooted_since(node, piece)


def _answered(node: NodeFact, piece: Evidence) -> bool:
    received = piece.received_at if piece.received_at is not None else piece.at
    return node.answered_at is not None and (received is None or received <= node.answered_at)


def _rebooted_since(node: NodeFact, piece: Evidence) -> bool:
    return node.boot_at is not None and piece.at is not None and node.boot_at > piece.at


def _settled(piece: Evidence, now: float, policy: Policy) -> bool:
    """Others of the same fault follow within moments, and belong to the same incident."""
    return piece.received_at is None or now - piece.received_at >= policy.limits.exit_settle_s
