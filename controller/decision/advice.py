"""What a person can do where Relume does nothing: a sentence with the exact command. Nothing is submitted anew by
Relume itself. Pure."""

from collections.abc import Sequence

from controller.decision.facts import SlurmJobFact
from controller.decision.launch_facts import SchedulerFact

ENDED = frozenset(
    {"FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE", "PREEMPTED", "CANCELLED", "COMPLETED"}
)
SUBMIT_AGAIN = "Relume does not submit jobs by itself: submit it again as before"


def no_requeue(slurm: SlurmJobFact, scheduler: SchedulerFact) -> str:
    """Slurm takes `Requeue=1` from the owner while the job has not ended (tried), and never afterwards."""
    whose = "the job forbids requeueing (--no-requeue)"
    if not scheduler.job_requeue:
        whose = "jobs of this cluster may not be requeued unless they ask for it (JobRequeue=0); --requeue asks"
    if slurm.base in ENDED and not slurm.completing:
        return f"{whose}; nothing was written. {SUBMIT_AGAIN}"
    return (
        f"{whose}; nothing was written. To have it queued again: scontrol update JobId={slurm.job_id} Requeue=1, then "
        f"scontrol requeue {slurm.job_id}"
    )


def not_batch(slurm: SlurmJobFact) -> str:
    return (
        f"only batch jobs can be requeued, and job {slurm.job_id} is one of salloc or srun; nothing was written. "
        f"End it with scancel {slurm.job_id} and start it again; with relume sbatch it would be recovered"
    )


def required_nodes(slurm: SlurmJobFact | None, pinned: Sequence[str]) -> str:
    """The list can be changed only while the job is pending."""
    names, job_id = ",".join(pinned), slurm.job_id if slurm is not None else "?"
    return (
        f"the job requires {names} by name, so it cannot be kept away from there; nothing was written. To let it run "
        f"elsewhere: scontrol requeuehold {job_id}, then scontrol update JobId={job_id} ReqNodeList=, then "
        f"scontrol release {job_id}"
    )


def preempted(slurm: SlurmJobFact) -> str:
    return (
        f"Slurm preempted the job and did not queue it again; nothing was written. To have it queued again: "
        f"scontrol requeue {slurm.job_id}"
    )
