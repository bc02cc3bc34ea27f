"""requeue_excluding: the job leaves its nodes, is queued again without the bad ones, and is seen to run.

Three parts, each of which looks at Slurm before it writes, so that a turn can begin anywhere after a crash:
- `kill`: until Slurm shows the job queued again. A requeue is not idempotent: it is never sent twice blind;
- `queue`: our hold, the exclusion, the pause that a launch needs after a kill, StartTime and release;
- `confirm`: running, or waiting for resources; a launch that Slurm spoiled is tried once more.

`progress` keys: `baseline` (restarts before), `sent_at`, `sends`, `answered_at` (requeue calls), `queued`, `queued_as`,
`hold` ({kind, reason} of our own job hold), `excluded_before`, `rolled_back`, `relaunched`; and the stamps `killed_at`,
`settled_at`, `requeued_at`, `released_at`, `running_at`.
"""

from controller.remediation.handlers.requeue import confirm, kill, queue
from controller.remediation.results import Refuse, Result
from controller.remediation.turn import Turn


def handle(turn: Turn) -> Result:
    job_id = turn.action.target
    job = turn.port.read_job(job_id)
    if job is None:
        return Refuse(f"Slurm does not know job {job_id} any more")
    owner = turn.incident.training_job.owner
    if job.user != owner:
        return Refuse(f"job {job_id} belongs to {job.user} now, not to {owner}")
    if job.is_het:
        return Refuse(f"job {job_id} is part of a heterogeneous job: those are not requeued by Relume")
    if not turn.progress.get("queued"):
        return kill.until_queued(turn, job)
    if "released_at" not in turn.progress:
        return queue.until_released(turn, job)
    return confirm.until_running(turn, job)
