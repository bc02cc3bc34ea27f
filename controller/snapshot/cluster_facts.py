"""What admit() spends: everybody's drains and our own requeues."""

from typing import Any

from django.db.models import Q

from controller.clock import aware
from controller.decision import actions
from controller.decision.facts import ClusterFacts
from controller.decision.node_hold import NODE_HOLD
from controller.decision.policy import Policy
from controller.models import Action, Cluster, Node, NodeHold

OUT_FLAGS = frozenset({"DRAIN", "FAIL"})


def cluster_facts(cluster: Cluster, now: float, policy: Policy) -> ClusterFacts:
    nodes = Node.objects.filter(cluster=cluster)
    unusual = nodes.filter(Q(base_state="DOWN") | ~Q(flags=[])).only("name", "base_state", "flags", "reason_at")
    out = {n.name: n for n in unusual if n.base_state == "DOWN" or OUT_FLAGS & set(n.flags)}
    hour_ago = aware(now - 3600)
    drained = {name for name, n in out.items() if n.reason_at is not None and n.reason_at > hour_ago}
    holds = NodeHold.objects.filter(node__cluster=cluster).select_related("node")
    held = {hold.node.name for hold in holds.filter(state__in=NODE_HOLD.live)}
    drained |= {hold.node.name for hold in holds.filter(created_at__gt=hour_ago, adopted=False)}
    return ClusterFacts(
        nodes_total=cluster.nodes_total,
        nodes_out=frozenset(out) | frozenset(held),
        drains_last_hour=len(drained),
        requeues_last_minute=_requeues(cluster, now),
        view_at=cluster.view_at.timestamp() if cluster.view_at is not None else None,
        mode=cluster.mode or policy.mode,
        paused=bool(cluster.paused_reason),
        breaker_open=cluster.breaker_open_until is not None and cluster.breaker_open_until.timestamp() > now,
        rights=_rights(cluster),
        job_user=cluster.rights.get("identities", {}).get("jobs", {}).get("user", ""),
    )


def _rights(cluster: Cluster) -> dict[str, Any]:
    """What a decision rests on, without the proofs: it is stored with every decision."""
    found = cluster.rights.get("capabilities", {})
    return {"capabilities": {name: {k: one[k] for k in ("may", "grant") if k in one} for name, one in found.items()}}


def _requeues(cluster: Cluster, now: float) -> int:
    """Begun in the last minute, or about to begin. One that waits out a back-off spends nothing yet."""
    ours = Action.objects.filter(incident__cluster=cluster, kind=actions.REQUEUE)
    ready = Q(state="ready", due_at__lte=aware(now + 60))
    soon = ready | Q(state="claimed") | Q(started_at__gt=aware(now - 60))
    return ours.filter(soon).exclude(state__in=("cancelled", "expired")).count()
