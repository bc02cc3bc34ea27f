"""What earlier incidents cost a training job, and its live one as facts."""

from collections.abc import Iterable
from dataclasses import dataclass

from controller.decision import actions
from controller.decision.facts import ActionFact, IncidentFact, Spent
from controller.models import Action, Attempt, Incident, TrainingJob

CHARGED = ("infrastructure", "process", "user", "time_limit")


@dataclass(frozen=True)
class PastIncident:
    """A requeue that was charged, and the generation that it ended (None: the script has no agent). `kind`: how the
    fault was judged."""

    budget: str
    generation: int | None
    kind: str


def read(jobs: Iterable[TrainingJob]) -> dict[int, list[PastIncident]]:
    """Per training job, oldest first. A requeue counts unless it was refused, expired or cancelled."""
    found: dict[int, list[PastIncident]] = {}
    charged = Action.objects.filter(
        incident__training_job__in=list(jobs), kind=actions.REQUEUE, state__in=("ready", "claimed", "done")
    ).order_by("incident_id")
    rows = charged.values_list(
        "incident__training_job_id",
        "incident__budget",
        "incident__attempt__generation",
        "incident__attempt__agentless",
        "incident__assessment",
        "incident__cause",
    )
    for job, budget, generation, agentless, said, cause in rows:
        kind = str(said.get("verdict") or cause)
        found.setdefault(job, []).append(PastIncident(budget, None if agentless else generation, kind))
    return found


def spent(incidents: list[PastIncident], attempts: list[Attempt]) -> Spent:
    """`same_step`: the newest requeues in a row since which no attempt got further than the attempts before them."""
    by_budget = {kind: sum(1 for i in incidents if i.budget == kind) for kind in CHARGED}
    furthest = _furthest(attempts, None)
    same_step = 0
    for incident in reversed(incidents):
        if incident.generation is None or _furthest(attempts, incident.generation) < furthest:
            break
        same_step += 1
    return Spent(**by_budget, same_step=same_step, of_kind=_of_kind(incidents, attempts, furthest))


def _of_kind(incidents: list[PastIncident], attempts: list[Attempt], furthest: int) -> dict[str, int]:
    """The newest requeues in a row that are not known to have been followed by progress, by how they were judged."""
    counted: dict[str, int] = {}
    for incident in reversed(incidents):
        if incident.generation is not None and _furthest(attempts, incident.generation) < furthest:
            break
        counted[incident.kind] = counted.get(incident.kind, 0) + 1
    return counted


def starts_before(job_id: str, attempts: list[Attempt]) -> int:
    """Starts of the Slurm jobs that this training job had before: each was started once more than it was restarted."""
    restarts: dict[str, int] = {}
    for attempt in attempts:
        if attempt.slurm_job_id != job_id:
            restarts[attempt.slurm_job_id] = max(restarts.get(attempt.slurm_job_id, 0), attempt.restart_count)
    return sum(count + 1 for count in restarts.values())


def _furthest(attempts: list[Attempt], generation: int | None) -> int:
    """The furthest step up to this generation; -1 before any."""
    steps = [a.step for a in attempts if a.step is not None and (generation is None or a.generation <= generation)]
    return max(steps, default=-1)


def live_fact(incident: Incident) -> IncidentFact:
    attempt = incident.attempt
    return IncidentFact(
        incident_id=incident.pk,
        state=incident.state,
        cause=incident.cause,
        generation=attempt.generation if attempt is not None and not attempt.agentless else None,
        restarts=incident.restarts_before,
        suspects=tuple(incident.suspects),
        ask=incident.ask,
        actions=tuple(
            ActionFact(a.kind, a.target, a.state, a.outcome, optional=a.optional)
            for a in incident.actions.all()
            if a.kind != actions.GIVE_BACK
        ),
    )
