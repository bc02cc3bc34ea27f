"""Starts that fail on a real Slurm, and a job that reaches its time limit: what Slurm really shows, and what comes of
it. The back-off is shortened here; the policy file refuses less than 30 s."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from controller import clock
from controller.decision.policy import Launch
from controller.models import AgentReport, Attempt, Incident, NodeHold, TrainingJob
from controller.slurm.views import HoldKind
from deploy.lab.cluster import Lab
from tests.cluster.broken_nodes import deaf, failing_prolog, read_only_spool
from tests.cluster.lab_world import LabWorld

pytestmark = [pytest.mark.cluster, pytest.mark.django_db(transaction=True)]

SHORT = Launch(backoff_s=3.0)
LIMIT = 5  # MaxBatchRequeue, where it cannot be set


def world_of(lab: Lab) -> LabWorld:
    world = LabWorld(lab)
    world.site = replace(world.site, policy=replace(world.site.policy, launch=SHORT))
    return world


def enrolled(world: LabWorld, *options: str) -> TrainingJob:
    world.job_id = world.submit(*options)
    job = world.enrol(world.job_id)
    TrainingJob.objects.filter(pk=job.pk).update(state="queued")
    return job


def resolved(world: LabWorld) -> Callable[[], bool]:
    return lambda: world.view().state.running and Incident.objects.latest("pk").state == "resolved"


def test_the_node_whose_prolog_fails_is_kept_from_the_job(lab: Lab) -> None:
    """Slurm drains gpu2 itself, holds the job and forgets where it was: the drain names the node, not the batch
    host."""
    world = world_of(lab)
    lab.configure(Prolog=str(failing_prolog(lab, "gpu2")))
    enrolled(world, "-N2")
    world.until(Incident.objects.exists, "the failed start is found", ticking=True)
    incident = world.incident()
    assert (incident.cause, incident.suspects) == ("slurm_infra", ["gpu2"])
    assert any("Prolog error" in line.raw for line in incident.evidence.all())
    assert world.view().hold_kind is HoldKind.LAUNCH_FAILED
    world.until(resolved(world), "it runs elsewhere", ticking=True)
    view = world.view()
    assert (view.excluded_nodes, view.restarts) == (("gpu2",), 1) and "gpu2" not in view.nodes
    drain = world.slurm.read_node("gpu2")
    assert drain is not None and drain.reason == "Prolog error" and NodeHold.objects.count() == 0


def test_a_host_that_only_accounting_remembers_is_kept_from_the_job(full_lab: Lab) -> None:
    """The start fails within milliseconds, and Slurm forgets the batch host."""
    world = world_of(full_lab)
    with read_only_spool(full_lab, "gpu1"):
        enrolled(world)
        world.until(Incident.objects.exists, "the failed start is found", ticking=True)
        assert world.incident().suspects == ["gpu1"], world.incident().reason
        world.until(resolved(world), "it runs elsewhere", ticking=True)
    assert world.view().nodes == ("gpu2",) and world.view().excluded_nodes == ("gpu1",)


def test_a_launch_that_the_host_does_not_take(lab: Lab) -> None:
    """Slurm queues the job again by itself. Until the host answers, the job is COMPLETING there."""
    world = world_of(lab)
    enrolled(world, "--begin=now+3")
    with deaf(lab, "gpu1"):
        world.until(Incident.objects.exists, "the failed start is found", ticking=True)
        incident = world.incident()
        assert (incident.cause, incident.suspects) == ("slurm_infra", ["gpu1"]), incident.reason
    world.until(resolved(world), "it runs elsewhere", 120, ticking=True)
    assert (world.view().nodes, world.view().restarts) == (("gpu2",), 1)


def test_slurms_own_limit_is_said_and_left_to_a_person(lab: Lab) -> None:
    """MaxBatchRequeue really strikes; after a person's release the job runs, and Relume follows it."""
    world = world_of(lab)
    enrolled(world, "-w", "gpu1", "--begin=now+1hour")
    for failed in range(1, LIMIT + 1):
        with deaf(lab, "gpu1"):
            world.slurm.set_start_now(world.job_id)
            world.until(lambda failed=failed: world.view().restarts == failed, f"failure {failed}")
        world.until(lambda: not world.view().state.completing, "the host has answered")
    assert world.view().hold_kind is HoldKind.REQUEUE_LIMIT
    world.until(Incident.objects.exists, "the limit is found", ticking=True)
    incident = world.incident()
    assert (incident.cause, incident.state) == ("launch_limit", "awaiting_operator")
    assert incident.actions.exclude(kind="notify").count() == 0
    lab.run("scontrol", "release", world.job_id, user="controller")
    world.slurm.set_start_now(world.job_id)
    world.until(resolved(world), "a person's release is followed", 120, ticking=True)


def test_a_run_that_reached_its_time_limit_goes_on(lab: Lab) -> None:
    """Slurm looks at time limits about twice a minute; EndTime spares the rest of the smallest limit, a minute."""
    world = world_of(lab)
    world.start("-t", "1")
    lab.run("scontrol", "update", f"JobId={world.job_id}", "EndTime=now+2", user="owner")
    # The sweep that this waits with may be the one that sees it first.
    ended = lambda: world.view().state.base == "TIMEOUT" or Incident.objects.exists()  # noqa: E731
    world.until(ended, "Slurm ends it", 60, ticking=True)
    Attempt.objects.update(first_new_step_at=clock.utcnow())
    AgentReport.objects.update(state="ended")
    world.until(Incident.objects.exists, "the time limit is found", ticking=True)
    incident = world.incident()
    assert (incident.cause, incident.budget, incident.suspects) == ("time_limit", "time_limit", [])
    world.until(lambda: world.view().state.running, "it runs again", ticking=True)
    assert (world.view().restarts, world.view().excluded_nodes) == (1, ())
