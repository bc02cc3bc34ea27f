"""requeue_excluding: the job leaves its nodes, is queued again without the bad ones, and is seen to run.

Each part looks at Slurm before it writes, so that a turn can begin anywhere after a crash:
- `target`: the job as one thing (plain, array task, het job whole); `gone`: what became of one that Slurm forgot;
- `kill`: until Slurm shows the job queued again. A requeue is not idempotent: it is never sent twice blind;
- `queue`: our hold, the exclusion (`exclusions`), the reservation of the survivors (`survivors`), the pause that a
  launch needs after a kill, StartTime and release;
- `confirm`: running, or waiting for resources; `launch`: a start that came too soon is tried once more.

`progress` keys: `baseline` (restarts before), `sent_at`, `sends`, `answered_at` (requeue calls), `queued`, `queued_as`,
`hold` ({kind, reason} of our own job hold), `exclusions` ({job: {found, users, written}}), `too_few` (names that could
not be kept from the job), `rolled_back`, `relaunched`, `unattached`, `not_reserved`; and the stamps `killed_at`,
`settled_at`, `requeued_at`, `released_at`, `running_at`.
"""

from controller.remediation.handlers.requeue import confirm, gone, kill, queue
from controller.remediation.results import Result
from controller.remediation.target import Target, of
from controller.remediation.turn import Turn


def handle(turn: Turn) -> Result:
    job = turn.port.read_job(turn.action.target)
    if job is None:
        return gone.explain(turn)
    target = of(turn, job)
    if not isinstance(target, Target):
        return target
    if turn.progress.get("unknown_since") is not None:
        turn.note(f"Slurm shows job {target.job_id} again", unknown_since=None)
    if not turn.progress.get("queued"):
        return kill.until_queued(turn, target)
    if "released_at" not in turn.progress:
        return queue.until_released(turn, target)
    return confirm.until_running(turn, target)
