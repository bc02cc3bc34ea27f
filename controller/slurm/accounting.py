"""`sacct` asked and read. No free text is asked for: a job's name may hold line breaks and the separator."""

from __future__ import annotations

from datetime import datetime

from controller.errors import SlurmUnreadable
from controller.slurm import checked, jobids, states
from controller.slurm.building import moment, names, number, present
from controller.slurm.views import PastJob

_FIELDS = ("JobID", "JobIDRaw", "Cluster", "User", "State", "ExitCode", "Submit", "Start", "End", "NodeList")
_LEAST = 1_000_000  # Slurm takes no smaller number for an epoch time


def question(job_id: str, since: datetime) -> tuple[str, ...]:
    """The call for every start of this job that ended after `since`.

    Whose it is, `parse_history` judges: sacct refuses a user's name that the machine it runs on does not know. `uts`
    gives an epoch time: the other forms mean the zone of whoever asks.
    """
    ref = jobids.parse(checked.job(job_id))
    asked = str(ref.job) if ref.tasks is not None else ref.target
    return (
        "sacct", "--local", "--allusers", "--parsable2", "--noheader", "--allocations", "--duplicates",
        f"--jobs={asked}", f"--starttime=uts{max(_LEAST, int(since.timestamp()))}", f"--format={','.join(_FIELDS)}",
    )  # fmt: skip


def parse_history(text: str, job_id: str, user: str, since: datetime) -> list[PastJob]:
    """The records that are this job's, oldest first: ids are reused, by others too. SlurmUnreadable when a line has
    another form."""
    past = [_past_job(line) for line in text.splitlines() if line.strip()]
    whole_second = since.replace(microsecond=0)  # Slurm knows no finer time
    ours = [
        job
        for job in past
        if job.user == user
        and job_id in (job.job_id, str(job.raw_id))
        and job.submit_time is not None
        and job.submit_time >= whole_second
    ]
    return sorted(ours, key=lambda job: job.submit_time or since)


def _past_job(line: str) -> PastJob:
    values = line.split("|")
    if len(values) != len(_FIELDS):
        raise SlurmUnreadable("accounting printed another number of columns", text=line[:2000])
    said = dict(zip(_FIELDS, values, strict=True))
    code, _, sent = said["ExitCode"].partition(":")
    try:
        return PastJob(
            job_id=said["JobID"],
            raw_id=int(said["JobIDRaw"]),
            state=states.parse_job(said["State"]),
            user=present(said["User"]),
            cluster=present(said["Cluster"]),
            nodes=names(said["NodeList"]),
            submit_time=moment(said["Submit"]),
            start_time=moment(said["Start"]),
            end_time=moment(said["End"]),
            exit_code=number(code),
            exit_signal=number(sent),
        )
    except ValueError as wrong:
        raise SlurmUnreadable(f"accounting record: {wrong}", text=line[:2000]) from wrong
