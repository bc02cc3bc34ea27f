"""The nodes that a hit job keeps, reserved for its owner before anything kills it: a hold gives them to whoever waits.

The reservation is short, so its end is the last net. Its name carries our mark and the incident, so that it is found
again after a crash; the action that gives it back is committed together with the stage that precedes its making.
"""

import hashlib
from collections.abc import Iterable

from controller.decision import actions, rights
from controller.decision.node_hold import NODE_HOLD
from controller.errors import RefusalKind, SlurmRefused
from controller.ledger.records import plan_aftercare
from controller.models import Action, Incident, NodeHold
from controller.remediation.target import Target
from controller.remediation.turn import Turn
from controller.slurm.views import ReservationView
from controller.snapshot.rights import remember_refusal

MINUTES = 5
PREFIX = "relume-"
# By then a reservation whose making timed out has appeared, if it ever does.
FIRST_LOOK_S = 10.0
# What waits for something else than nodes.
NOT_NOW = frozenset({"BeginTime", "Dependency", "DependencyNeverSatisfied", "BadConstraints"})


def name_of(incident: Incident) -> str:
    """The same for every look at this incident, and another one for an incident of the same number elsewhere."""
    origin = f"{incident.training_job.run_id} {incident.detected_at.timestamp():.6f}"
    return f"{PREFIX}{incident.pk}-{hashlib.sha256(origin.encode()).hexdigest()[:8]}"


def reserve(turn: Turn, target: Target) -> None:
    """Before the kill. It is a help and no condition: what Slurm refuses is noted, and the requeue goes on without."""
    name = name_of(turn.incident)
    nodes = _nodes(turn, target)
    if not nodes or _pointless(turn, target) or _given_back(turn, name):
        return
    if turn.port.read_reservation(name) is not None:
        return
    text = f"reserve {', '.join(nodes)} for {target.lead.user}"
    turn.stage("reserve", text, also=lambda: _plan_give_back(turn, name))
    try:
        turn.port.reserve_nodes(name, nodes, user=target.lead.user, minutes=MINUTES)
    except SlurmRefused as refused:
        turn.note(f"not reserved: {refused}", not_reserved=str(refused))
        if refused.kind is RefusalKind.NOT_PERMITTED:
            remember_refusal(turn.incident.cluster_id, rights.RESERVE, str(refused), turn.now())


def settle(turn: Turn, target: Target) -> None:
    """Right before the release. Where somebody else waits for these nodes, the job starts in the reservation (and, by
    FLEX, on other nodes as well). Where nobody does, the reservation ends first: Slurm's main scheduler passes a job
    with FLEX by, and only the backfill scheduler would start it, half a minute later (tried on 22.05)."""
    name = name_of(turn.incident)
    if turn.progress.get("unattached") or not _planned(turn, name) or _given_back(turn, name):
        return
    reservation = turn.port.read_reservation(name)
    if reservation is None or all(part.reservation for part in target.parts):
        return
    if _somebody_waits(turn, target, reservation) or not _ended(turn, name):
        _attach(turn, target, name)


def _attach(turn: Turn, target: Target, name: str) -> None:
    turn.stage("attach", f"others wait: job {target.job_id} starts in reservation {name}")
    try:
        turn.port.set_reservation(target.job_id, name)
    except SlurmRefused as refused:
        turn.note(f"it starts without the reservation: {refused}", unattached=True)


def _ended(turn: Turn, name: str) -> bool:
    turn.stage("unreserve", f"nobody else waits: reservation {name} ends, so that the release starts the job at once")
    try:
        turn.port.delete_reservation(name)
    except SlurmRefused as refused:
        turn.note(f"it stays: {refused}")
        return refused.kind is RefusalKind.INVALID_RESERVATION
    return True


def _somebody_waits(turn: Turn, target: Target, reservation: ReservationView) -> bool:
    """Another job could be started on these nodes now. Jobs that may be hidden from us count as waiting."""
    view = turn.port.read_cluster()
    if "jobs" in view.private_data and rights.may(turn.incident.cluster.rights, rights.READ_JOBS) is not True:
        return True
    places = {
        name for name, partition in view.partitions.items() if set(partition.nodes) & set(reservation.nodes)
    } or set(target.lead.partition)
    ours = {part.raw_id for part in target.parts}
    return any(
        job.state.pending and not job.held and job.raw_id not in ours and places & set(job.partition)
        for job in view.jobs.values()
        if job.reason not in NOT_NOW
    )


def _nodes(turn: Turn, target: Target) -> list[str]:
    """What the job holds at this moment, without what is bad. A job that has ended has given its nodes back."""
    if target.terminal or target.pending:
        return []
    held = NodeHold.objects.filter(node__cluster=turn.incident.cluster_id, state__in=NODE_HOLD.live)
    bad = {*_excluded(turn.incident), *held.values_list("node__name", flat=True)}
    return [node for node in target.nodes if node not in bad]


def _excluded(incident: Incident) -> Iterable[str]:
    return incident.exclusions.values_list("node__name", flat=True)


def _pointless(turn: Turn, target: Target) -> bool:
    """The user's own reservation is kept; a right that we know to be missing is not asked for."""
    forbidden = rights.may(turn.incident.cluster.rights, rights.RESERVE) is False
    return forbidden or "not_reserved" in turn.progress or any(part.reservation for part in target.parts)


def _plan_give_back(turn: Turn, name: str) -> None:
    plan_aftercare(turn.incident, actions.GIVE_BACK, name, due=turn.now() + FIRST_LOOK_S, now=turn.now())


def _planned(turn: Turn, name: str) -> bool:
    return Action.objects.filter(incident=turn.incident, kind=actions.GIVE_BACK, target=name).exists()


def _given_back(turn: Turn, name: str) -> bool:
    gone = Action.objects.filter(incident=turn.incident, kind=actions.GIVE_BACK, target=name)
    return gone.exclude(state__in=("ready", "claimed")).exists()
