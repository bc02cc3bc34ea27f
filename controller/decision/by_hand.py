"""What people can type themselves where Relume may not act: exact commands, for a job's owner or an operator. Pure."""

from collections.abc import Iterable


def requeue(job_id: str, exclude: Iterable[str], excluded: Iterable[str]) -> str:
    """Requeue without the nodes `exclude`; `excluded` are those the job keeps away from already, since Slurm replaces
    the list. The pause is not polite but needed: a start right after the kill can fail."""
    names = sorted({*exclude, *excluded})
    change = f"ExcNodeList={','.join(names)} " if names else ""
    return (
        f"scontrol requeuehold {job_id}; when squeue no longer shows it COMPLETING, and 2 s later: "
        f"scontrol update JobId={job_id} {change}StartTime=now; scontrol release {job_id}"
    )
