"""One state change: `UPDATE ... WHERE state = old`, and its StateChange row, in one transaction."""

from typing import Any, TypeVar

from django.db import models, transaction

from controller.clock import aware
from controller.decision.actions import ACTION
from controller.decision.attempt import ATTEMPT
from controller.decision.incident import INCIDENT
from controller.decision.machine import Machine
from controller.decision.node_hold import NODE_HOLD
from controller.decision.training_job import TRAINING_JOB
from controller.errors import RelumeError
from controller.models import Action, Attempt, Incident, NodeHold, StateChange, TrainingJob

MACHINES: dict[type[models.Model], Machine] = {
    TrainingJob: TRAINING_JOB,
    Attempt: ATTEMPT,
    Incident: INCIDENT,
    NodeHold: NODE_HOLD,
    Action: ACTION,
}


class LostRace(RelumeError):
    """Somebody else changed the row first. Normal: read again and decide again."""

    retry = True


Row = TypeVar("Row", TrainingJob, Attempt, Incident, NodeHold, Action)


def move(
    row: Row,
    event: str,
    *,
    reason: str,
    now: float,
    by: str = "controller",
    where: models.Q | None = None,
    **also: Any,
) -> Row:
    """Moves `row` by `event` and sets the columns in `also`, if it still is in the state that `row` shows and matches
    `where`. Raises RefusedTransition when the table forbids it, LostRace when the row has moved on. The given object
    is changed only on success."""
    machine = MACHINES[type(row)]
    old = row.state
    new = machine.after(old, event)
    columns = {**_columns_of(row, old, new, reason, by, now), **also}
    with transaction.atomic():
        query = type(row).objects.filter(pk=row.pk, state=old)
        if where is not None:
            query = query.filter(where)
        if not query.update(state=new, **columns):
            raise LostRace(f"{machine.name} {row.pk} is not {old} any more ({event})")
        StateChange.objects.create(
            table=machine.name, row=row.pk, event=event, old=old, new=new, reason=reason, by=by, at=aware(now)
        )
    for name, value in {"state": new, **columns}.items():
        setattr(row, name, value)
    return row


def allowed(row: models.Model, event: str | None) -> bool:
    """Whether the row's table lists this event in its present state."""
    return event is not None and MACHINES[type(row)].allows(row.state, event)  # type: ignore[attr-defined]


def _columns_of(row: models.Model, old: str, new: str, reason: str, by: str, now: float) -> dict[str, Any]:
    """What a state change says about itself in the row."""
    at = aware(now)
    over = new in MACHINES[type(row)].final
    if isinstance(row, TrainingJob):
        return {"state_at": at, "state_reason": reason, **({"ended_at": at} if over else {})}
    if isinstance(row, NodeHold):
        ended = {"ended_at": at, "ended_by": by, "ended_reason": reason} if over else {}
        return {"state_at": at, **ended}
    if isinstance(row, Incident) and new == "acting":
        return {"acting_at": at}
    if isinstance(row, Action) and new == "claimed" and row.started_at is None:
        return {"started_at": at}
    return {"ended_at": at} if over else {}
