"""What follows from other rows alone: attempts that a newer one replaced, attempts of scripts without an agent, holds
whose node emptied or came back, exclusions whose time stands still."""

from datetime import timedelta
from typing import Any, TypeVar

from django.db.models import Exists, OuterRef

from controller.clock import aware
from controller.decision import silence
from controller.decision.attempt import ATTEMPT
from controller.decision.machine import RefusedTransition
from controller.decision.node_hold import NODE_HOLD, STICKY_WITHIN_S, HeldNode, follow_hold, sticky
from controller.decision.policy import Policy
from controller.decision.training_job import TRAINING_JOB
from controller.ledger.moves import LostRace, move
from controller.models import Attempt, Cluster, Exclusion, Node, NodeHold, TrainingJob

# An agent speaks within seconds of its start; a script that runs this long without one has none.
AGENTLESS_AFTER_S = 30.0
# How much of an exclusion's time may pass before it is written anew: not at every sweep.
RENEW_EVERY_S = 600.0
OUT_FLAGS = frozenset({"DRAIN", "FAIL"})

Followed = TypeVar("Followed", Attempt, NodeHold)


def follow_attempts(cluster: Cluster, now: float) -> None:
    _count_restarts(cluster, now)
    newer = Attempt.objects.filter(training_job=OuterRef("training_job"), generation__gt=OuterRef("generation"))
    stale = Attempt.objects.filter(training_job__cluster=cluster, state__in=ATTEMPT.live).filter(Exists(newer))
    for attempt in stale:
        reason = "a newer attempt took over"
        _quietly(attempt, "end", reason, now, outcome="superseded", outcome_reason=reason)


def _count_restarts(cluster: Cluster, now: float) -> None:
    """Scripts that never speak to us: each start that Slurm shows is an attempt, numbered by Slurm's restarts."""
    speaking = Attempt.objects.filter(training_job=OuterRef("pk"), agentless=False)
    jobs = TrainingJob.objects.filter(cluster=cluster, state__in=TRAINING_JOB.live, view__base="RUNNING")
    for job in jobs.filter(~Exists(speaking)):
        started = job.view.get("start_time")
        if job.view.get("missing") or started is None:
            continue
        could_speak = started if job.excused_at is None else max(started, job.excused_at.timestamp())
        if now - could_speak < AGENTLESS_AFTER_S:
            continue
        Attempt.objects.get_or_create(
            training_job=job,
            generation=job.view["restarts"] + 1,
            defaults={
                "agentless": True,
                "slurm_job_id": job.view["job_id"],
                "restart_count": job.view["restarts"],
                "nodes": job.view["nodes"],
                "created_at": aware(now),
                "launched_at": aware(started),
            },
        )


def follow_exclusions(cluster: Cluster, now: float, policy: Policy) -> None:
    """An exclusion's time runs only while its node is in service: a node that was out, or rebooting, all the while has
    proved nothing, so the exclusion counts anew from its return."""
    held = NodeHold.objects.filter(node=OuterRef("node"), state__in=NODE_HOLD.live)
    whole = policy.limits.exclusion_s
    aging = Exclusion.objects.filter(
        training_job__cluster=cluster,
        training_job__state__in=TRAINING_JOB.live,
        expires_at__gt=aware(now),
        expires_at__lte=aware(now + whole - min(RENEW_EVERY_S, whole / 2)),
    )
    for exclusion in aging.annotate(held=Exists(held)).select_related("node"):
        if exclusion.held or _out_of_service(exclusion.node):
            exclusion.expires_at = aware(now + whole)
            exclusion.save(update_fields=["expires_at"])


def _out_of_service(node: Node) -> bool:
    return node.base_state == "DOWN" or bool((OUT_FLAGS | silence.NODE_FLAGS) & set(node.flags))


def follow_holds(cluster: Cluster, now: float) -> None:
    """What Slurm's view says of held nodes: emptied, in service again, touched by somebody else."""
    holds = NodeHold.objects.filter(node__cluster=cluster, state__in=("draining", "drained", "returned"))
    for hold in holds.exclude(slurm_reason="").select_related("node"):
        # Slurm's times are whole seconds: a view from the same moment may be older than the drain.
        since = max(hold.state_at, (hold.slurm_reason_at or hold.state_at) + timedelta(seconds=2))
        if cluster.view_at is None or not since < cluster.view_at <= hold.node.seen_at:
            continue  # a node that is not shown is unknown
        _remember(hold, now)
        node = _held_node(hold)
        said = follow_hold(hold.state, node, adopted=hold.adopted, is_sticky=hold.sticky)
        if said is not None:
            event, reason = said
            _quietly(hold, event, reason, now, **({"by": "somebody in Slurm"} if event == "release" else {}))


def _held_node(hold: NodeHold) -> HeldNode:
    node = hold.node
    empty = not node.jobs and "COMPLETING" not in node.flags and node.base_state in ("IDLE", "DOWN")
    return HeldNode(
        out=bool(OUT_FLAGS & set(node.flags)),
        down=node.base_state == "DOWN",
        empty=empty,
        jobs=tuple(node.jobs),
        rebooted=node.rebooted_at != hold.rebooted_at,
    )


def _remember(hold: NodeHold, now: float) -> None:
    """What a later look needs: the reboots seen while the node was out, and whether the hold sticks."""
    node, columns = hold.node, []
    if OUT_FLAGS & set(node.flags) and node.rebooted_at != hold.rebooted_at:
        hold.rebooted_at = node.rebooted_at
        columns.append("rebooted_at")
    if not hold.sticky and sticky(_drains(node, now), now):
        hold.sticky = True
        columns.append("sticky")
    if columns:
        hold.save(update_fields=columns)


def _drains(node: Node, now: float) -> list[float]:
    recent = node.events.filter(kind="drained", at__gt=aware(now - STICKY_WITHIN_S))
    return [at.timestamp() for at in recent.values_list("at", flat=True)]


def _quietly(row: Followed, event: str, reason: str, now: float, **also: Any) -> None:
    """Somebody else was faster: nothing to do."""
    try:
        move(row, event, reason=reason, now=now, **also)
    except (LostRace, RefusedTransition):
        return
