"""give_back: the reservation of a job's survivors ends as soon as the job runs, or is not going to run.

A reservation in use is not deleted: first our own job is set free of it, which Slurm allows while it runs. What is
still there when its minutes are over ends by itself and sets its jobs free.
"""

from controller.decision import actions
from controller.errors import RefusalKind, SlurmRefused
from controller.models import Action
from controller.remediation.results import Done, Result, Wait
from controller.remediation.target import Target, of
from controller.remediation.turn import Turn
from controller.slurm.views import ReservationView

# Longer than the waits that the executor sits out: nobody is in a hurry for it.
WAITING_LOOK_S = 5.0
IN_USE_LOOK_S = 3.0


def handle(turn: Turn) -> Result:
    name = turn.action.target
    reservation = turn.port.read_reservation(name)
    if reservation is None:
        return Done(f"reservation {name} is not there any more")
    requeue = Action.objects.filter(incident=turn.incident, kind=actions.REQUEUE).first()
    job = turn.port.read_job(requeue.target) if requeue is not None else None
    target = of(turn, job) if job is not None else None
    if isinstance(target, Wait):
        return target
    if isinstance(target, Target) and requeue is not None:
        inside = any(part.reservation == name for part in target.parts)
        if inside and target.pending and requeue.state == "done" and not target.holds:
            return Wait(WAITING_LOOK_S, f"job {target.job_id} waits with {', '.join(reservation.nodes)} kept for it")
        if inside:
            _set_free(turn, target)
    return _delete(turn, reservation)


def _set_free(turn: Turn, target: Target) -> None:
    name = turn.action.target
    turn.stage("free", f"set job {target.job_id} free of reservation {name}")
    try:
        turn.port.set_reservation(target.job_id, "")
    except SlurmRefused as refused:
        turn.note(f"job {target.job_id} stays in it: {refused}")


def _delete(turn: Turn, reservation: ReservationView) -> Result:
    turn.stage("delete", f"delete reservation {reservation.name}")
    try:
        turn.port.delete_reservation(reservation.name)
    except SlurmRefused as refused:
        if refused.kind is RefusalKind.IN_USE:
            return Wait(IN_USE_LOOK_S, f"reservation {reservation.name} is in use; it ends at {reservation.end_time}")
        if refused.kind is not RefusalKind.INVALID_RESERVATION:
            raise
    if turn.port.read_reservation(reservation.name) is not None:
        return Wait(IN_USE_LOOK_S, f"reservation {reservation.name} is still there")
    return Done(f"reservation {reservation.name} is deleted: {', '.join(reservation.nodes)}")
