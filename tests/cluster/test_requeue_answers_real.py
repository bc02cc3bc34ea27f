"""Requeues on a real Slurm whose calls get no answer, and launches that Slurm revokes or gives up."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from controller.errors import SlurmTimeout
from controller.models import Action
from controller.slurm.cli import CliSlurm, TimeLimits
from controller.slurm.views import HoldKind
from tests.cluster.lab_world import WHOLE_NODE, LabWorld

pytestmark = [pytest.mark.cluster, pytest.mark.django_db]

FULL = os.environ.get("RELUME_FULL") == "1"


# a start that comes too soon after the kill


def test_no_job_is_lost_in_a_row_of_requeues(world: LabWorld) -> None:
    """ "Job credential revoked" comes by chance; whatever comes, the job runs again after each."""
    times = 200 if FULL else 10
    job = world.running(script="#!/bin/sh\nexec sleep 3600\n")
    took, again = [], 0
    for number in range(1, times + 1):
        started = time.monotonic()
        action = world.carry_out(world.order(job))
        assert action.state == "done" and "runs again" in action.outcome, f"requeue {number}: {action.outcome}"
        took.append(time.monotonic() - started)
        again += bool(action.progress.get("relaunched"))
        assert world.view().state.running
    took.sort()
    print(f"{times} requeues: median {took[times // 2]:.1f} s, most {took[-1]:.1f} s, started twice: {again}")
    assert world.view().restarts == times + again


# answers that do not come


class Frozen:
    """The port of a controller whose slurmctld stops just before each of these calls arrives the first time."""

    CALLS = ("reserve_nodes", "requeue_job", "hold_job", "exclude_nodes", "delete_reservation", "release_job")

    def __init__(self, world: LabWorld, calls: tuple[str, ...]) -> None:
        port = world.slurm
        assert isinstance(port, CliSlurm)
        self.port = replace(port, limits=TimeLimits(batch=8.0, read=5.0, write=1.0))
        self.lab, self.left, self.timed_out = world.lab, set(calls), []  # type: ignore[var-annotated]
        self.sent: dict[str, int] = {}

    def __getattr__(self, name: str) -> object:
        found = getattr(self.port, name)
        if name not in self.CALLS:
            return found

        def call(*args: object, **options: object) -> object:
            self.sent[name] = self.sent.get(name, 0) + 1
            if name not in self.left:
                return found(*args, **options)
            self.left.remove(name)
            self.lab.freeze_slurmctld()
            thaw = threading.Timer(2.0, self.lab.freeze_slurmctld, kwargs={"frozen": False})
            thaw.start()
            try:
                return found(*args, **options)
            except SlurmTimeout:
                self.timed_out.append(name)
                raise
            finally:
                thaw.join()

        return call


def test_calls_that_time_out_and_take_effect_later_happen_once(world: LabWorld) -> None:
    job = world.running("-N2", WHOLE_NODE)
    action = world.order(job, world.view().nodes[1])
    bad = action.params["exclude"]
    calls = ("reserve_nodes", "requeue_job", "exclude_nodes", "delete_reservation", "release_job")
    frozen = Frozen(world, calls)
    world.site = replace(world.site, port=frozen)  # type: ignore[arg-type]
    world.carry_out(action, 90)
    assert action.state == "done", action.outcome
    assert tuple(frozen.timed_out) == calls
    assert frozen.sent["requeue_job"] == 1
    view = world.view()
    assert view.restarts == 1 and view.state.running and list(view.excluded_nodes) == bad
    world.carry_out(Action.objects.get(kind="give_back"))
    assert world.slurm.read_cluster().reservations == {} and world.view().reservation == ""


def test_a_hold_that_times_out_is_found_and_released(world: LabWorld) -> None:
    """Slurm has requeued the job by itself; our hold gets no answer."""
    job = world.running(WHOLE_NODE)
    action = world.order(job)
    world.scontrol("requeue", world.job_id)
    frozen = Frozen(world, ("hold_job",))
    world.site = replace(world.site, port=frozen)  # type: ignore[arg-type]
    world.carry_out(action, 60)
    assert frozen.timed_out == ["hold_job"] and frozen.sent.get("requeue_job", 0) == 0
    assert world.view().state.running and world.view().restarts == 1 and not world.view().held


# a launch that fails


@contextmanager
def rejecting(world: LabWorld, node: str, first: int) -> Iterator[None]:
    """A node that can set up no batch job: where the job's folder belongs there is a file."""
    spool = world.lab.dir / "spool" / node
    marks = [spool / f"job{number:05}" for number in range(first, first + 3)]
    for mark in marks:
        mark.touch()
    try:
        yield
    finally:
        for mark in marks:
            mark.unlink(missing_ok=True)


def test_a_launch_that_slurm_gave_up_is_taken_from_its_hold(world: LabWorld) -> None:
    """ "launch failed requeued held": the decision names the host, the requeue keeps it away and releases once."""
    world.job_id = world.submit("--hold", "-w", "gpu1,gpu2", "-N2")
    with rejecting(world, "gpu1", int(world.job_id)):
        world.scontrol("release", world.job_id)
        world.until(lambda: world.view().hold_kind is HoldKind.LAUNCH_FAILED, "Slurm holds the job")
    world.scontrol("update", f"JobId={world.job_id}", "ReqNodeList=", user="owner")
    action = world.carry_out(world.order(world.enrol(world.job_id), "gpu1"))
    assert action.state == "done" and "runs again" in action.outcome
    assert world.view().restarts == 1 and world.view().excluded_nodes == ("gpu1",) and not world.view().held
