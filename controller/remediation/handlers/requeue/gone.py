"""Slurm does not know the job id: what became of the job, as far as anybody can tell. Nothing is written."""

import re
from datetime import timedelta

from controller.errors import RefusalKind, SlurmRefused
from controller.remediation.results import Refuse, Result, Wait
from controller.remediation.turn import Turn
from controller.slurm import jobids
from controller.slurm.views import PastJob

# After a restart of slurmctld it is asked again for so long: its memory may be on its way.
RESTARTED_LOOK_S = 30.0
SLACK = timedelta(minutes=1)
_SPAN = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)
ANEW = "it can only be submitted anew"


def explain(turn: Turn) -> Result:
    """A job that left slurmctld is not a failed job, and right after a restart of slurmctld not even gone."""
    job_id = turn.action.target
    waiting = _not_started(turn, job_id)
    if waiting is not None:
        return waiting
    restarted = _restarted(turn)
    since = turn.progress.get("unknown_since")
    if since is None:
        since = turn.now()
        turn.note(f"Slurm does not know job {job_id}", unknown_since=since)
    if restarted and turn.now() - since < RESTARTED_LOOK_S:
        return Wait(2.0, f"Slurm does not know job {job_id}, but its controller was restarted at {restarted}")
    return Refuse(_sentence(job_id, _history(turn, job_id), restarted))


def _not_started(turn: Turn, job_id: str) -> Result | None:
    """A task of an array that still waits in the array's common record has not been started: nothing hit it."""
    asked = jobids.parse(job_id)
    if asked.task is None:
        return None
    if any(_covers(job.array_tasks, asked.task) for job in turn.port.read_array(str(asked.job))):
        return Refuse(f"task {asked.task} of array {asked.job} has not been started: there is nothing to requeue")
    return None


def _covers(tasks: str, number: int) -> bool:
    """Whether "1,5-9:2%3" holds this task. What cannot be read, as the end of a list that Slurm cut off, does not."""
    for span in tasks.partition("%")[0].split(","):
        if found := _SPAN.fullmatch(span):
            first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
            if first <= number <= last and (number - first) % step == 0:
                return True
    return False


def _restarted(turn: Turn) -> str:
    """When slurmctld was started, if that was after the job was: it may have forgotten the newest jobs. Or ""."""
    booted = turn.port.read_cluster().controller_boot_time
    begun = turn.incident.training_job.created_at
    whole_second = timedelta(seconds=1)  # Slurm's own times have no fraction
    return f"{booted:%H:%M:%S} UTC" if booted is not None and booted + whole_second > begun else ""


def _history(turn: Turn, job_id: str) -> list[PastJob] | None:
    """None when there is no accounting to ask, or none that we may."""
    job = turn.incident.training_job
    submitted = min([job.created_at, *job.submissions.values_list("submitted_at", flat=True)])
    try:
        return turn.port.read_history(job_id, user=job.owner, since=submitted - SLACK)
    except SlurmRefused as refused:
        if refused.kind not in (RefusalKind.DISABLED, RefusalKind.NOT_PERMITTED):
            raise
        return None


def _sentence(job_id: str, history: list[PastJob] | None, restarted: str) -> str:
    text = f"Slurm does not know job {job_id} any more"
    lost = f"; its controller was restarted at {restarted} and may have forgotten it" if restarted else ""
    if history is None:
        return f"{text}, and there is no accounting that says how it ended{lost}: {ANEW}"
    if not history:
        return f"{text}, and accounting has no record of it{lost}: {ANEW}"
    last = history[-1]
    if not last.state.terminal:
        return f"{text}, and accounting still has it {last.state.base}: Slurm lost it{lost}; {ANEW}"
    when = f" at {last.end_time:%Y-%m-%d %H:%M:%S} UTC" if last.end_time is not None else ""
    end = f"{text}: accounting says {last.state.base}{when}"
    if last.state.base in ("COMPLETED", "CANCELLED"):
        return f"{end}; nothing is requeued"
    return f"{end} (exit code {last.exit_code}:{last.exit_signal}); {ANEW}"
