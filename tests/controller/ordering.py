"""One requeue on the in-memory Slurm: decided from a fault, or ordered without one."""

from typing import Any

from controller.clock import aware
from controller.decision.actions import REQUEUE, ActionPlan
from controller.decision.propose import Proposal
from controller.ledger.records import plan_actions
from controller.models import Action, Incident
from controller.remediation.executor import run_actions
from tests.scenarios.world import World


def decided(world: World, *, living: bool = False, **job: Any) -> Incident:
    """gpu2 is lost, the incident is committed, nothing is carried out yet. `living`: its host answers again by then."""
    world.start(**job)
    world.kill_host("gpu2")
    while not Incident.objects.exists():
        world.tick(actions=False)
    if living:
        world.dark.clear()
        world.slurm.restore_host("gpu2")
    return world.incident()


def ordered(world: World, *exclude: str) -> None:
    """A requeue of the running job, as a decision would have committed it."""
    job, now = world.job(), aware(world.now)
    job.incidents.update(state="abandoned")
    incident = Incident.objects.create(
        cluster=job.cluster,
        training_job=job,
        attempt=job.attempts.latest("generation"),
        state="acting",
        cause="node_down",
        summary="ordered",
        reason="ordered",
        confidence=1.0,
        budget="infrastructure",
        detected_at=now,
    )
    restarts = world.slurm_job().restarts
    params = {"exclude": list(exclude), "restarts_before": restarts, "run_id": job.run_id}
    proposal = Proposal(job.run_id, "ordered", plans=(ActionPlan(REQUEUE, job.slurm_job_id, 2, params),))
    plan_actions(incident, proposal, world.policy, world.now, waits=False)


def requeue(world: World) -> Action:
    return world.action("requeue_excluding")


def act(world: World, seconds: float) -> None:
    """Actions alone: the world's agents ask for the job."""
    end = world.now + seconds
    while world.now < end:
        world.now += 1.0
        run_actions(world.site)
