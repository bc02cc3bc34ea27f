"""The executor: claim, recheck, act, look, record. One turn of one action at a time; waits are `due_at` columns.

A claim is a conditional UPDATE with a lease. Whoever claims an action whose lease ran out goes on from its stage: the
handlers look at Slurm before they write, so a write is never repeated blind.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import structlog
from django.db.models import Q

from controller.clock import aware
from controller.decision import actions, rights
from controller.decision.machine import RefusedTransition
from controller.errors import RefusalKind, SlurmRefused, SlurmUnavailable, SlurmUnreadable
from controller.ledger import LostRace, move
from controller.ledger.records import release_unwritten_hold
from controller.models import Action
from controller.remediation import handlers, safety
from controller.remediation.results import Done, Refuse, Result, Wait
from controller.remediation.turn import LEASE_S, Turn
from controller.site import Site
from controller.snapshot.rights import remember_refusal

log = structlog.get_logger()

SHORT_WAIT_S = 2.0
RUN_FOR_S = 12.0
IN_HAND_S = 8.0
RETRY_S = 1.0
# The right that a kind of action stands on; all others change a job.
NEEDS = {
    actions.HOLD_NODE: rights.UPDATE_NODES,
    actions.RELEASE_NODE: rights.UPDATE_NODES,
    actions.GIVE_BACK: rights.RESERVE,
}


def run_actions(site: Site) -> int:
    """Carries out what is due, with short waits in between; returns the number of turns. Bounded by RUN_FOR_S."""
    turns = 0
    until = site.clock() + RUN_FOR_S
    while site.clock() < until:
        if run_once(site):
            turns += 1
            continue
        pause = _until_next(site.clock())
        if pause is None or pause > SHORT_WAIT_S:
            break
        site.sleep(max(pause, 0.01))
    return turns


def run_once(site: Site) -> bool:
    """One turn of the first action that is due; False when there is none."""
    for action in _due(site.clock()):
        turn = safety.may_run_after(action, _earlier(action))
        if turn is False:
            continue
        if _take(action, site, blocked=turn if isinstance(turn, str) else ""):
            return True
    return False


def _claimable(now: float) -> Q:
    lost = Q(state="claimed") & (Q(lease_until=None) | Q(lease_until__lte=aware(now)))
    return Q(state="proposed", expires_at__lte=aware(now)) | Q(state="ready", due_at__lte=aware(now)) | lost


def _due(now: float) -> list[Action]:
    rows = Action.objects.filter(_claimable(now)).select_related("incident__training_job", "incident__cluster")
    return list(rows.order_by("incident_id", "order", "pk")[:200])


def _earlier(action: Action) -> list[Action]:
    before = Action.objects.filter(incident=action.incident_id, order__lt=action.order)
    return list(before.only("state", "kind", "target", "optional", "order"))


def _until_next(now: float) -> float | None:
    """Seconds until an action that may run is due; None without any."""
    soon = Action.objects.filter(state="ready", due_at__lte=aware(now + SHORT_WAIT_S)).order_by("due_at")
    for action in soon[:50]:
        if safety.may_run_after(action, _earlier(action)) is not False:
            return max(0.0, action.due_at.timestamp() - now)
    return None


def _take(action: Action, site: Site, *, blocked: str) -> bool:
    """One turn. False when another process was faster."""
    now = site.clock()
    try:
        if action.state == "proposed":
            _end(action, "expire", "nobody approved it in time", now)
            return True
        lease: dict[str, Any] = {
            "lease_owner": site.owner,
            "lease_until": aware(now + LEASE_S),
            "tries": action.tries + 1,
        }
        move(action, "claim", reason=f"claimed by {site.owner}", now=now, where=_claimable(now), **lease)
        _turn(action, site, blocked)
    except (LostRace, RefusedTransition) as lost:
        log.info("lost_race", action=action.pk, reason=str(lost))
        return False
    return True


def _turn(action: Action, site: Site, blocked: str) -> None:
    turn = Turn(action, site)
    if not turn.begun:
        if blocked:
            _end(action, "cancel", blocked, turn.now())
            return
        if action.expires_at <= aware(turn.now()):
            _end(action, "expire", "it could not begin in time; old decisions are not acted upon", turn.now())
            return
        objection = safety.objection(action, site.policy.mode)
        if objection is not None:
            _record(action, objection, turn.now())
            return
    _record(action, _carry_on(handlers.HANDLERS[action.kind], turn), turn.now())


def _carry_on(handler: Callable[[Turn], Result], turn: Turn) -> Result:
    """Short waits are sat out with the claim in hand, up to IN_HAND_S; a longer one goes back to the queue."""
    until = turn.now() + IN_HAND_S
    result = _guarded(handler, turn)
    while isinstance(result, Wait) and result.seconds <= SHORT_WAIT_S and turn.now() + result.seconds <= until:
        turn.site.sleep(result.seconds)
        turn.renew()
        result = _guarded(handler, turn)
    return result


def _guarded(handler: Callable[[Turn], Result], turn: Turn) -> Result:
    """An outage is not an answer: look again later. What Slurm refuses for good is refused, and so is a name or a text
    that our own checks keep from Slurm: raised, it would end every run of the actions behind it."""
    try:
        return handler(turn)
    except (SlurmUnavailable, SlurmUnreadable) as error:
        return Wait(RETRY_S, f"no answer from Slurm to act upon: {error}")
    except SlurmRefused as error:
        return Wait(RETRY_S, str(error)) if error.retry else _refused(turn, error)
    except ValueError as error:
        log.exception("action_unwritable", key=turn.action.key)
        return Refuse(f"it cannot be put to Slurm: {error}")


def _refused(turn: Turn, error: SlurmRefused) -> Refuse:
    """A right that is missing is remembered, so that it is not planned again, and people get the commands."""
    action, text = turn.action, f"Slurm refused: {error}"
    if error.kind is not RefusalKind.NOT_PERMITTED:
        return Refuse(text)
    capability = NEEDS.get(action.kind, rights.JOBS_OF_OTHERS)
    if capability != rights.JOBS_OF_OTHERS or turn.incident.training_job.owner != turn.site.slurm_user:
        remember_refusal(turn.incident.cluster_id, capability, text, turn.now())
    by_hand = action.params.get("by_hand")
    return Refuse(f"{text}. By hand: {by_hand}" if by_hand else text)


def _record(action: Action, result: Result, now: float) -> None:
    if isinstance(result, Wait):
        due = aware(now) + timedelta(seconds=result.seconds)
        move(action, "wait", reason=result.text, now=now, due_at=due, outcome=result.text, lease_owner="")
    elif isinstance(result, Done):
        _end(action, "done", result.text, now)
    else:
        _end(action, "refuse", result.text, now)


def _end(action: Action, event: str, text: str, now: float) -> None:
    move(action, event, reason=text, now=now, outcome=text, lease_owner="")
    log.info("action_ended", key=action.key, state=action.state, outcome=text)
    if action.kind == actions.HOLD_NODE and action.state != "done":
        release_unwritten_hold(action.incident, action.target, text, now)
