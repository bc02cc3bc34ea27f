"""Slurm does not know the job id: what became of the job, as far as anybody can tell. Nothing is written."""

from datetime import timedelta

from controller.errors import RefusalKind, SlurmRefused
from controller.remediation.results import Refuse, Result, Wait
from controller.remediation.turn import Turn
from controller.slurm.views import PastJob

# After a restart of slurmctld it is asked again for so long: its memory may be on its way.
RESTARTED_LOOK_S = 30.0
SLACK = timedelta(minutes=1)
ANEW = "it can only be submitted anew"


def explain(turn: Turn) -> Result:
    """A job that left slurmctld is not a failed job, and right after a restart of slurmctld not even gone."""
    job_id = turn.action.target
    restarted = _restarted(turn)
    since = turn.progress.get("unknown_since")
    if since is None:
        since = turn.now()
        turn.note(f"Slurm does not know job {job_id}", unknown_since=since)
    if restarted and turn.now() - since < RESTARTED_LOOK_S:
        return Wait(2.0, f"Slurm does not know job {job_id}, but its controller was restarted at {restarted}")
    return Refuse(_sentence(job_id, _history(turn, job_id), restarted))


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
