"""release_node: returns a node to service by a person's word, and only what is provably our own drain.

`params.automatic`: a passed check says so, no person. A hold that sticks refuses that.
"""

from controller.decision.node_hold import release_refusal
from controller.ledger import move
from controller.remediation.handlers.node import live_hold, still_ours
from controller.remediation.results import Done, Refuse, Result
from controller.remediation.turn import Turn


def handle(turn: Turn) -> Result:
    name = turn.action.target
    who, why = turn.action.params["who"], turn.action.params["reason"]
    hold = live_hold(turn.incident.cluster_id, name)
    if hold is None:
        return Done(f"{name} is not held any more")
    refusal = release_refusal(is_sticky=hold.sticky, by_person=not turn.action.params.get("automatic"))
    if refusal is not None:
        return Refuse(f"{name} stays held: {refusal}")
    node = turn.port.read_node(name)
    if node is None:
        return Refuse(f"Slurm does not know {name}")
    if node.state.drain or node.state.down or node.state.fail:
        if hold.adopted or not still_ours(node, hold):
            text = f"{name} stays out in Slurm: the drain is {node.reason_user}'s ({node.reason}), not ours"
            move(hold, "release", reason=f"{why}; {text}", now=turn.now(), by=who)
            return Done(text)
        turn.stage("resume", f"resume {name}")
        turn.port.resume_node(name)
        node = turn.port.read_node(name)
        if node is None or node.state.drain:
            return Refuse(f"{name} is still out after the resume")
    move(hold, "release", reason=why, now=turn.now(), by=who)
    return Done(f"{name} is in service again")
