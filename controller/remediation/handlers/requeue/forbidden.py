"""What Slurm, the site or the user forbid: refused before anything is written, with what a person can do."""

from controller.decision import advice
from controller.decision.facts import SlurmJobFact
from controller.decision.launch_facts import SchedulerFact
from controller.remediation.target import Target
from controller.remediation.turn import Turn
from controller.slurm.views import JobView


def why(turn: Turn, target: Target) -> str:
    """The sentence why this job is not requeued, or ""."""
    for part in target.parts:
        if not part.batch:
            return advice.not_batch(_fact(part))
    if not all(part.requeue for part in target.parts):
        return no_requeue(turn, target)
    return required(turn, target)


def required(turn: Turn, target: Target) -> str:
    """A node that the user asked for by name is not kept from the job: with neither it could never run."""
    for part in target.parts:
        bad = [name for name in part.required_nodes if name in turn.action.params["exclude"]]
        if bad:
            return advice.required_nodes(_fact(part), bad)
    return ""


def no_requeue(turn: Turn, target: Target) -> str:
    """Requeue=0 has two authors: the user, and a site whose default it is."""
    by_site = turn.port.read_cluster().config.get("JobRequeue") == "0"
    return advice.no_requeue(_fact(target.lead), SchedulerFact(job_requeue=not by_site))


def _fact(part: JobView) -> SlurmJobFact:
    """What the advice speaks of."""
    return SlurmJobFact(job_id=part.job_id, base=part.state.base, flags=part.state.flags, nodes=part.nodes)
