"""What the node handlers share: whose drain it is, and the rows that remember it."""

from datetime import timedelta

from controller.decision.node_hold import NODE_HOLD
from controller.models import NodeHold
from controller.slurm.views import NodeView

# What Slurm itself writes when it takes a node down; everything else is somebody's word.
SLURMS_OWN_REASONS = ("not responding", "node unexpectedly rebooted")


def mark(hold: NodeHold) -> str:
    return f"relume:{hold.token}"


def carries_mark(node: NodeView, hold: NodeHold) -> bool:
    return node.reason.startswith(mark(hold))


def out_by_somebody(node: NodeView, hold: NodeHold) -> bool:
    """DRAIN, FAIL, or DOWN with a reason that neither we nor Slurm's own timer wrote."""
    if carries_mark(node, hold):
        return False
    if node.state.drain or node.state.fail:
        return True
    words = node.reason.strip().lower()
    return node.state.down and bool(words) and not words.startswith(SLURMS_OWN_REASONS)


def still_ours(node: NodeView, hold: NodeHold) -> bool:
    """Token, user and time are as we left them: nobody has touched the drain since."""
    if hold.adopted or not carries_mark(node, hold) or node.reason_user != hold.slurm_reason_user:
        return False
    if node.reason_at is None or hold.slurm_reason_at is None:
        return False
    return abs(node.reason_at - hold.slurm_reason_at) < timedelta(seconds=1)


def live_hold(cluster_id: int, name: str) -> NodeHold | None:
    rows = NodeHold.objects.filter(node__cluster=cluster_id, node__name=name, state__in=NODE_HOLD.live)
    return rows.select_related("node").first()


def remember(hold: NodeHold, node: NodeView, *, adopted: bool) -> None:
    """What stands in Slurm now, so that a later look can tell whether it was touched."""
    hold.adopted = adopted
    hold.slurm_reason = node.reason or node.state.label
    hold.slurm_reason_user = node.reason_user
    hold.slurm_reason_at = node.reason_at
    hold.save(update_fields=["adopted", "slurm_reason", "slurm_reason_user", "slurm_reason_at"])
