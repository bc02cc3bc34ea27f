"""hold_node: DRAIN with our mark in the Reason, then, for a dead host, DOWN.

DRAIN first, because a returning slurmd lifts a plain DOWN. DOWN kills every job there, strangers' too: `down` says when
it may be written; on a living host the requeue ends our job alone. Somebody else's drain is adopted: recorded, and
nothing written. Nothing is ever cleared here.
"""

from controller.decision import actions
from controller.models import Action, NodeHold
from controller.remediation import survivors, target
from controller.remediation.handlers import down
from controller.remediation.handlers.node import carries_mark, live_hold, mark, out_by_somebody, remember
from controller.remediation.results import Done, Refuse, Result
from controller.remediation.turn import Turn
from controller.slurm.views import NodeView

REASON_CHARS = 200


def handle(turn: Turn) -> Result:
    name = turn.action.target
    hold = live_hold(turn.incident.cluster_id, name)
    if hold is None:
        return Refuse(f"there is no live hold of {name}: it was released")
    node = turn.port.read_node(name)
    if node is None:
        return Refuse(f"Slurm does not know {name}")
    if out_by_somebody(node, hold):
        return _adopt(hold, node)
    if not (carries_mark(node, hold) and node.state.drain):
        turn.stage("drain", f"drain {name}")
        node = _looked(turn, name)  # writing the stage took its time, and our reason would replace theirs
        if out_by_somebody(node, hold):
            return _adopt(hold, node)
        turn.port.drain_node(name, _reason(turn, hold))
        node = _looked(turn, name)
        if not (carries_mark(node, hold) and node.state.drain):
            return Refuse(f"{name} shows {node.state.raw} ({node.reason}) after the drain: somebody else changed it")
    if not hold.slurm_reason:
        remember(hold, node, adopted=False)
    if "drained_at" not in turn.progress:
        turn.note(f"{name} is {node.state.raw}: {node.reason}", drained_at=turn.now())
    return _down(turn, hold, node) if turn.action.params.get("down") else Done(f"{name} is drained")


def _adopt(hold: NodeHold, node: NodeView) -> Result:
    remember(hold, node, adopted=True)
    return Done(f"{node.name} was taken out by {node.reason_user or 'somebody'} ({node.reason}): adopted, not changed")


def _reason(turn: Turn, hold: NodeHold) -> str:
    """One line for `sinfo -R`: our mark first, then what it is about. No `=`: a sudoers rule takes none (grants.py)."""
    text = " ".join(f"{mark(hold)} incident {turn.incident.pk}: {turn.incident.summary}".split())
    return "".join(c for c in text if c.isprintable() and c not in "'\"|=")[:REASON_CHARS]


def _looked(turn: Turn, name: str) -> NodeView:
    node = turn.port.read_node(name)
    assert node is not None, "a node that was just written to"
    return node


def _down(turn: Turn, hold: NodeHold, node: NodeView) -> Result:
    if node.state.down:
        return _confirmed(turn, hold, node)
    refusal = down.refusal(turn, node)
    if refusal:
        return Done(f"{node.name} is drained, not DOWN: {refusal}")
    _keep_survivors(turn)
    turn.stage("down", f"down {node.name}")
    turn.port.down_node(node.name, _reason(turn, hold))
    return _confirmed(turn, hold, _looked(turn, node.name))


def _keep_survivors(turn: Turn) -> None:
    """DOWN ends the job everywhere, and its other nodes would be anybody's: they are reserved first."""
    requeue = Action.objects.filter(incident=turn.incident, kind=actions.REQUEUE, state="ready").first()
    job = turn.port.read_job(requeue.target) if requeue is not None else None
    hit = target.of(turn, job) if job is not None else None
    if isinstance(hit, target.Target):
        survivors.reserve(turn, hit)


def _confirmed(turn: Turn, hold: NodeHold, node: NodeView) -> Result:
    """A living slurmd may have lifted the DOWN by now; what counts is that the drain stands."""
    if carries_mark(node, hold):
        remember(hold, node, adopted=False)
    turn.note(f"{node.name} is {node.state.raw}: {node.reason}", down_at=turn.progress.get("down_at", turn.now()))
    return Done(f"{node.name} is drained" + (" and DOWN" if node.state.down else ""))
