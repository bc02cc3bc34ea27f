"""ExcNodeList: the user's own names, those of this incident, and of earlier ones that have not expired.

Slurm keeps one list and not who wrote what: `exclusions` in the action's progress does ({job: {found, users,
written}}), and the next requeue of the job reads it there. So a name of ours that has expired is taken out again, and
a name that the user gave never is.
"""

from collections.abc import Iterable
from typing import Any

from controller.clock import aware
from controller.decision import actions
from controller.errors import RefusalKind, SlurmRefused
from controller.models import Action, Exclusion
from controller.remediation import survivors
from controller.remediation.handlers.requeue import forbidden
from controller.remediation.results import Refuse, Result, Wait
from controller.remediation.target import Target
from controller.remediation.turn import Turn
from controller.slurm.capacity import capacity
from controller.slurm.views import ClusterView, JobView


def apply_exclusion(turn: Turn, target: Target) -> Result | None:
    """None when every list stands, as read back."""
    why = forbidden.required(turn, target)
    if why:
        return Refuse(why)
    for part in target.parts:
        record = turn.progress.get("exclusions", {}).get(target.name_of(part))
        if record is not None and set(record["written"]) == set(part.excluded_nodes):
            continue
        result = _write(turn, target.name_of(part), part)
        if result is not None:
            return result
    return None


def _write(turn: Turn, name: str, part: JobView) -> Result | None:
    users = _users(turn, name, part)
    wanted = sorted({*users, *_ours(turn, part, users)})
    record = {"found": list(part.excluded_nodes), "users": users, "written": wanted}
    records = {**turn.progress.get("exclusions", {}), name: record}
    text = f"exclude {', '.join(wanted) or 'no node'} from job {name}"
    if set(wanted) == set(part.excluded_nodes):
        turn.note(f"{text}: that is so already", exclusions=records)
        return None
    turn.stage("exclude", text, exclusions=records)
    try:
        turn.port.exclude_nodes(name, wanted, start_time="now")
    except SlurmRefused as refused:
        if refused.kind is not RefusalKind.BAD_NODES:
            raise
        return _without_unknown(turn, name, wanted)
    seen = turn.port.read_job(name)
    if seen is None or not seen.state.pending:
        return Wait(0.3, f"job {name} left the queue")
    missing = set(wanted) - set(seen.excluded_nodes)
    return Refuse(f"Slurm did not take the exclusion of {', '.join(sorted(missing))}") if missing else None


def _without_unknown(turn: Turn, name: str, wanted: list[str]) -> Result:
    """One name that Slurm does not know fails the whole list: it is left out, and the list written anew."""
    unknown = [node for node in wanted if turn.port.read_node(node) is None]
    if not unknown:
        return Refuse(f"Slurm refuses the exclusion of {', '.join(wanted)} from job {name}")
    forgotten = {**turn.progress["exclusions"]}
    forgotten.pop(name)
    before = turn.progress.get("unknown_names", [])
    turn.note(f"Slurm does not know {', '.join(unknown)}", unknown_names=[*before, *unknown], exclusions=forgotten)
    return Wait(0.0, f"Slurm does not know {', '.join(unknown)}")


# --- whose names ---------------------------------------------------------------------------------------------------


def _users(turn: Turn, name: str, part: JobView) -> list[str]:
    """The names on the job's list that are the user's: all of them when we never wrote it; else what was the user's
    then, and what came since."""
    record = _last_record(turn, name)
    if record is None:
        return sorted(part.excluded_nodes)
    known = {*record["found"], *record["written"]}
    return sorted({node for node in part.excluded_nodes if node not in known or node in record["users"]})


def _last_record(turn: Turn, name: str) -> dict[str, Any] | None:
    own = turn.progress.get("exclusions", {}).get(name)
    if own is not None:
        return dict(own)
    before = Action.objects.filter(
        incident__training_job=turn.incident.training_job, kind=actions.REQUEUE, target=turn.action.target
    ).exclude(pk=turn.action.pk)
    for action in before.order_by("-pk"):
        if name in action.progress.get("exclusions", {}):
            return dict(action.progress["exclusions"][name])
    return None


def _ours(turn: Turn, part: JobView, users: Iterable[str]) -> list[str]:
    """What we keep from the job, as far as enough nodes remain: this incident's names before earlier ones."""
    if turn.progress.get("rolled_back"):
        return []
    earlier = Exclusion.objects.filter(training_job=turn.incident.training_job, expires_at__gt=aware(turn.now()))
    names = list(turn.action.params["exclude"])
    names += earlier.order_by("-pk").values_list("node__name", flat=True)
    left_out = {*users, *turn.progress.get("unknown_names", ()), *turn.progress.get("too_few", ())}
    wanted = [node for node in dict.fromkeys(names) if node not in left_out]
    return _affordable(turn, part, wanted, users) if wanted else []


def _affordable(turn: Turn, part: JobView, wanted: list[str], users: Iterable[str]) -> list[str]:
    view: ClusterView = turn.port.read_cluster()
    room = capacity(view, part, list(users), kept=[survivors.name_of(turn.incident)])
    if room is None:
        return wanted
    kept = room.affordable(wanted)
    dropped = [node for node in wanted if node not in kept]
    if dropped:
        text = (
            f"{', '.join(dropped)} not excluded: job {part.job_id} needs {room.needed} nodes; {len(room.fitting)} fit "
            f"it, {len(room.usable)} of them usable"
        )
        turn.note(text, too_few=[*turn.progress.get("too_few", ()), *dropped])
        _not_in_force(turn, dropped)
    return kept


def _not_in_force(turn: Turn, names: Iterable[str]) -> None:
    """An exclusion that Slurm does not hold ends: the pages show what is true."""
    rows = Exclusion.objects.filter(training_job=turn.incident.training_job, node__name__in=list(names))
    rows.filter(expires_at__gt=aware(turn.now())).update(expires_at=aware(turn.now()))


# --- taken back ----------------------------------------------------------------------------------------------------


def in_force(turn: Turn) -> bool:
    """Names of ours stand on a list of this job."""
    records = turn.progress.get("exclusions", {}).values()
    return any(set(record["written"]) - set(record["users"]) for record in records)


def roll_back(turn: Turn, target: Target) -> Result:
    """With our exclusion the job can never run: our names are taken back, for later restarts too."""
    text = f"too few nodes are left for job {target.job_id}: our exclusion is taken back"
    turn.stage("exclude", text, rolled_back=True)
    _not_in_force(turn, {node for record in turn.progress["exclusions"].values() for node in record["written"]})
    for part in target.parts:
        users = turn.progress["exclusions"][target.name_of(part)]["users"]
        turn.port.exclude_nodes(target.name_of(part), users, start_time="now")
    return Wait(0.5, text)


def words(turn: Turn) -> str:
    """What an outcome says about names that are not kept from the job after all, or ""."""
    if turn.progress.get("rolled_back"):
        return "; without our exclusion, which left too few nodes"
    too_few = turn.progress.get("too_few")
    return f"; {', '.join(too_few)} not excluded: too few nodes would be left" if too_few else ""
