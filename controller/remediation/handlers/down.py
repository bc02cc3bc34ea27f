"""When a held node may be set DOWN: DOWN kills every job there, strangers' too, so everything is asked again right now.

Never while the host answers anybody. A silent host that holds our job alone is set DOWN on the controller's own probe,
beside another node that answers it at the same moment. Where somebody else's job is on it, or may be hidden from us,
the controller's word is not enough: a cut between it and a living host would kill that job. slurmctld, or an agent
that probed the host just now, must find it silent too.
"""

from datetime import timedelta

from controller.clock import aware
from controller.models import Node, NodeCheck
from controller.remediation.turn import Turn
from controller.slurm.reach import Outcome, Target
from controller.slurm.views import ClusterView, NodeView
from controller.snapshot.probing import CONTROLLER, agent_doors

SILENT: tuple[Outcome, ...] = ("timeout", "unreachable")
CONTROLS = 3
AGENTS_WORD = timedelta(seconds=30)


def refusal(turn: Turn, node: NodeView) -> str:
    """Why DOWN must not be written now, or ""."""
    why = _reachable(turn, node)
    if why:
        return why
    view = turn.port.read_cluster()
    now = view.nodes.get(node.name)
    if now is None or now.reason != node.reason or now.state.fail:
        return "somebody changed it meanwhile"
    strangers = _strangers(turn, view, node.name)
    hidden = "jobs" in view.private_data
    if not strangers and not hidden:
        return ""
    there = f"{strangers} job{'s' * (strangers != 1)} of others" if strangers else "jobs that Slurm may hide from us"
    if not now.state.responding or now.state.down or _agents_agree(turn, node.name):
        turn.note(f"{there} on {node.name} too: slurmctld or an agent beside us finds the host silent as well")
        return ""
    return (
        f"{there} on it may be alive: nobody but the controller finds the host silent; the requeue ends our job there"
    )


def _reachable(turn: Turn, node: NodeView) -> str:
    """One round of probes: the host by every door we know, and others that tell whether we reach anybody at all."""
    row = Node.objects.filter(cluster=turn.incident.cluster_id, name=node.name)
    own = [Target(node.address or node.name, node.port), *agent_doors(list(row)).get(node.name, ())]
    others = _controls(turn, node.name)
    outcomes = turn.site.probe([*own, *others], turn.site.policy.limits.probe_timeout_s)
    answers = [outcome for outcome in outcomes[: len(own)] if outcome not in SILENT]
    if answers:
        return f"the host answers a probe ({answers[0]}); the requeue ends its job there"
    if all(outcome in SILENT for outcome in outcomes[len(own) :]):
        return "the controller reaches no other node either, so its own network may be cut"
    return ""


def _controls(turn: Turn, but: str) -> list[Target]:
    """Nodes that Slurm believed up in the last view."""
    nodes = Node.objects.filter(cluster=turn.incident.cluster_id, base_state__in=("IDLE", "MIXED", "ALLOCATED"))
    up = [node for node in nodes.exclude(name=but).exclude(port=None)[:50] if "NOT_RESPONDING" not in node.flags]
    return [Target(node.address, node.port or 0) for node in up[:CONTROLS]]


def _strangers(turn: Turn, view: ClusterView, name: str) -> int:
    """Live jobs there besides the one that this incident is about."""
    ours = view.job(turn.incident.training_job.slurm_job_id)
    return sum(1 for job in view.jobs_on(name) if ours is None or job.raw_id != ours.raw_id)


def _agents_agree(turn: Turn, name: str) -> bool:
    """An agent on another node probed it within the last half minute: silent, and nobody got an answer since."""
    recent = NodeCheck.objects.filter(
        node__cluster=turn.incident.cluster_id, node__name=name, answered_at__gt=aware(turn.now()) - AGENTS_WORD
    )
    seen = list(recent.exclude(vantage=CONTROLLER).order_by("-answered_at").values_list("outcome", flat=True))
    return bool(seen) and all(outcome in SILENT for outcome in seen)
