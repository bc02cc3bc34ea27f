"""Every trap of a requeue with an exclusion, on a real Slurm: each test is one requeue through our own handlers."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from controller.errors import SlurmTimeout
from controller.models import Action, Exclusion
from controller.remediation.executor import run_actions
from controller.slurm.cli import CliSlurm, TimeLimits
from controller.slurm.views import HoldKind
from deploy.lab.cluster import Lab
from tests.cluster.lab_world import LabWorld

pytestmark = [pytest.mark.cluster, pytest.mark.django_db]

FULL = os.environ.get("RELUME_FULL") == "1"
WHOLE_NODE = "--gres=gpu:8"
STUBBORN = "#!/bin/bash\ntrap '' TERM\nwhile :; do sleep 0.2; done\n"


@pytest.fixture
def world(lab: Lab) -> LabWorld:
    return LabWorld(lab)


def scontrol(world: LabWorld, *words: str, user: str = "root") -> None:
    world.lab.run("scontrol", *words, user=user)


# a. a start that comes too soon after the kill


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


# b. answers that do not come


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
    scontrol(world, "requeue", world.job_id)
    frozen = Frozen(world, ("hold_job",))
    world.site = replace(world.site, port=frozen)  # type: ignore[arg-type]
    world.carry_out(action, 60)
    assert frozen.timed_out == ["hold_job"] and frozen.sent.get("requeue_job", 0) == 0
    assert world.view().state.running and world.view().restarts == 1 and not world.view().held


# c. nodes given away while held


@pytest.mark.parametrize("may_reserve", [True, False])
def test_the_survivors_are_kept_where_we_may(world: LabWorld, may_reserve: bool) -> None:
    """Somebody waits for three nodes; our job has two of four, and one of them goes bad. With the reservation it gets
    the other and a spare: from the backfill scheduler, which looks every half minute, the waiting job being first."""
    job = world.running("-N2", WHOLE_NODE)
    kept, bad = world.view().nodes
    if not may_reserve:
        job.cluster.rights = {"capabilities": {"reserve": {"may": "no"}}}
        job.cluster.save()
    scontrol(world, "update", f"NodeName={bad}", "State=DRAIN", "Reason=bad")
    waiting = world.submit("-N3", WHOLE_NODE, "-D", "/", user="web")
    action = world.carry_out(world.order(job, bad), 90)
    stranger = world.slurm.read_job(waiting)
    assert stranger is not None and action.state == "done"
    if not may_reserve:
        assert stranger.state.running and world.view().state.pending
        assert "waits" in action.outcome and "running_at" not in action.progress
        assert not Action.objects.filter(kind="give_back").exists()
        return
    assert stranger.state.pending
    world.until(lambda: world.view().state.running, "the job runs", 60)
    assert kept in world.view().nodes and bad not in world.view().nodes
    given = world.carry_out(Action.objects.get(kind="give_back"))
    assert given.state == "done" and world.slurm.read_cluster().reservations == {}
    assert world.view().state.running and world.view().reservation == ""


# A reservation lasts a minute at least: waiting for its end is the campaign's.
if FULL:

    def test_a_job_that_must_wait_keeps_its_survivors_until_it_runs_or_the_minutes_are_over(world: LabWorld) -> None:
        stranger = world.submit("-N1", "--nodelist=gpu4", WHOLE_NODE, "-D", "/", user="web")
        world.until(lambda: world.slurm.read_job(stranger).state.running, "the stranger's job runs")  # type: ignore[union-attr]
        job = world.running("-N3", WHOLE_NODE)
        *kept, bad = world.view().nodes
        world.submit("-N4", WHOLE_NODE, "-D", "/", user="web")
        action = world.carry_out(world.order(job, bad), 90)
        assert "waits" in action.outcome and world.view().state.pending
        (reservation,) = world.slurm.read_cluster().reservations.values()
        assert set(reservation.nodes) == set(kept) and world.view().reservation == reservation.name
        given = Action.objects.get(kind="give_back")
        Action.objects.update(due_at=given.created_at)
        run_actions(world.site)
        given.refresh_from_db()
        assert given.state == "ready" and "waits with" in given.outcome
        scontrol(world, "update", f"ReservationName={reservation.name}", "Duration=1")
        world.until(lambda: world.slurm.read_reservation(reservation.name) is None, "the reservation ends", 100)
        world.until(lambda: world.view().reservation == "", "the job is free of it")
        assert world.view().state.pending and not world.view().held, "pinned to nothing, held by nobody"
        assert world.carry_out(given).outcome == f"reservation {reservation.name} is not there any more"


def test_the_users_own_reservation_is_kept(world: LabWorld) -> None:
    owner = world.lab.users["owner"]
    reserve = ("create", "reservation", "ReservationName=course", f"Users={owner}", "Nodes=gpu[1-3]", "StartTime=now")
    scontrol(world, *reserve, "Duration=10", user="controller")
    job = world.running("-N2", WHOLE_NODE, "--reservation=course")
    bad = world.view().nodes[0]
    action = world.carry_out(world.order(job, bad))
    assert action.state == "done" and world.view().state.running and world.view().reservation == "course"
    assert bad not in world.view().nodes and set(world.slurm.read_cluster().reservations) == {"course"}


# d. too few nodes


def test_too_few_nodes_would_be_left(world: LabWorld) -> None:
    """The fourth node is out for somebody else's reason: excluding one of ours would leave two for three."""
    scontrol(world, "update", "NodeName=gpu4", "State=DRAIN", "Reason=fan")
    job = world.running("-N3", WHOLE_NODE, "--constraint=h100&ib")
    bad = world.view().nodes[1]
    Exclusion.objects.all().delete()
    action = world.carry_out(world.order(job, bad))
    assert action.state == "done" and f"{bad} not excluded: too few nodes" in action.outcome
    assert world.view().state.running and world.view().excluded_nodes == ()
    assert not Exclusion.objects.filter(expires_at__gt=action.ended_at).exists()


def test_bad_constraints_that_nobody_could_count_are_taken_back(world: LabWorld) -> None:
    """A features expression that is not read: Slurm says BadConstraints, and the job gets its priority back."""
    job = world.running("-N4", WHOLE_NODE, "--constraint=[h100*4]")
    action = world.carry_out(world.order(job, "gpu3"), 90)
    assert action.state == "done" and "without our exclusion" in action.outcome, action.outcome
    world.until(lambda: world.view().state.running, "the job runs")
    assert world.view().excluded_nodes == () and world.view().restarts == 1


# e. whose names are on the list


def test_the_users_names_stay_and_ours_expire(world: LabWorld) -> None:
    job = world.running(WHOLE_NODE, "--exclude=gpu4")
    first = world.view().nodes[0]
    world.carry_out(world.order(job, first))
    assert set(world.view().excluded_nodes) == {"gpu4", first}
    Exclusion.objects.update(expires_at=job.created_at)
    second = world.view().nodes[0]
    action = world.carry_out(world.order(job, second))
    assert action.state == "done" and set(world.view().excluded_nodes) == {"gpu4", second}


# f. what is forbidden


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--no-requeue",), "--no-requeue"), (("--nodelist=gpu2",), "requires gpu2 by name")],
)
def test_what_the_user_forbade_is_refused_and_nothing_is_broken(
    world: LabWorld, options: tuple[str, ...], said: str
) -> None:
    job = world.running(*options)
    before = world.view()
    action = world.carry_out(world.order(job, "gpu2"))
    assert action.state == "refused" and said in action.outcome and "scontrol" in action.outcome
    after = world.view()
    assert (after.state.base, after.restarts, after.excluded_nodes) == ("RUNNING", 0, ()) and not after.held
    assert after.start_time == before.start_time and world.slurm.read_cluster().reservations == {}


def test_the_sites_default_is_told_apart_from_the_users_word(world: LabWorld) -> None:
    world.lab.job_requeue(False)
    job = world.running()
    action = world.carry_out(world.order(job))
    assert action.state == "refused" and "JobRequeue=0" in action.outcome
    # What the sentence says works.
    scontrol(world, "update", f"JobId={world.job_id}", "Requeue=1", user="owner")
    assert world.carry_out(world.order(job)).state == "done"


# g. a launch that fails


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
        scontrol(world, "release", world.job_id)
        world.until(lambda: world.view().hold_kind is HoldKind.LAUNCH_FAILED, "Slurm holds the job")
    scontrol(world, "update", f"JobId={world.job_id}", "ReqNodeList=", user="owner")
    action = world.carry_out(world.order(world.enrol(world.job_id), "gpu1"))
    assert action.state == "done" and "runs again" in action.outcome
    assert world.view().restarts == 1 and world.view().excluded_nodes == ("gpu1",) and not world.view().held


# h. processes that do not go


def test_a_job_that_does_not_go_is_waited_for_and_said(world: LabWorld) -> None:
    """Ranks that ignore SIGTERM, under a slurmstepd that is stopped as if in the kernel: COMPLETING until it goes."""
    world.lab.set_kill_wait(5)
    job = world.running(WHOLE_NODE, script=STUBBORN)
    node = world.view().nodes[0]
    stuck = [pid for pid in world.lab.pids(node) if Path(f"/proc/{pid}/comm").read_text().strip() == "slurmstepd"]
    assert stuck
    for pid in stuck:
        os.kill(pid, signal.SIGSTOP)
    action = world.order(job)
    try:
        world.until(lambda: _says(world, action, "have not ended"), "it says what it waits for", 30)
        assert node in action.outcome and "KillWait" in action.outcome and world.view().state.completing
    finally:
        for pid in stuck:
            os.kill(pid, signal.SIGCONT)
    world.carry_out(action, 60)
    assert action.state == "done" and world.view().restarts == 1
    assert action.progress["settled_at"] - action.progress["killed_at"] > 5.0


def _says(world: LabWorld, action: Action, words: str) -> bool:
    run_actions(world.site)
    action.refresh_from_db()
    return words in action.outcome


# i. arrays and het jobs


def test_a_task_is_requeued_alone(world: LabWorld) -> None:
    array = world.submit("--array=1-9%2", "-N1", WHOLE_NODE)
    world.job_id = f"{array}_2"
    world.until(lambda: world.view().state.running, "the task runs")
    other = world.slurm.read_job(f"{array}_1")
    assert other is not None
    bad = world.view().nodes[0]
    action = world.carry_out(world.order(world.enrol(world.job_id), bad))
    assert action.state == "done" and world.view().restarts == 1 and world.view().excluded_nodes == (bad,)
    after = world.slurm.read_job(f"{array}_1")
    assert after is not None and (after.state.base, after.restarts, after.excluded_nodes) == ("RUNNING", 0, ())
    waiting = world.enrol(f"{array}_8")
    world.job_id = f"{array}_2"
    refused = world.carry_out(world.order(waiting, bad))
    assert refused.state == "refused" and "has not been started" in refused.outcome


def test_a_het_job_is_requeued_whole(world: LabWorld) -> None:
    """Only the backfill scheduler starts het jobs, every half minute: it is waited for at the start, and not again."""
    script = world.lab.dir / "home" / "owner" / "het.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    first = ["-N1", "-w", "gpu1", WHOLE_NODE]
    world.job_id = world.lab.run(
        *("sbatch", "--parsable", "-o", "/dev/null", *first, ":", "-N1", WHOLE_NODE, str(script)), cwd=script.parent
    ).stdout.strip()
    world.until(lambda: world.view().state.running, "the het job runs", 90)
    time.sleep(1.0)
    second = world.slurm.read_array(world.job_id)[1]
    (bad,) = second.nodes
    action = world.carry_out(world.order(world.enrol(world.job_id), bad), 90)
    assert action.state == "done", action.outcome
    parts = world.slurm.read_array(world.job_id)
    assert [part.restarts for part in parts] == [1, 1] and not any(part.held for part in parts)
    assert all(bad in part.excluded_nodes for part in parts)  # Slurm itself keeps gpu1 from the second


# j. whose hold it is


@pytest.mark.parametrize(("who", "words"), [("owner", "its owner"), ("root", "an operator or administrator")])
def test_a_persons_hold_outlives_the_requeue(world: LabWorld, who: str, words: str) -> None:
    job = world.running(WHOLE_NODE)
    bad = world.view().nodes[0]
    scontrol(world, "hold", world.job_id, user=who)
    action = world.carry_out(world.order(job, bad))
    assert action.state == "refused" and f"held by {words}" in action.outcome
    view = world.view()
    assert view.state.pending and view.restarts == 1 and view.excluded_nodes == (bad,)
    assert view.hold_kind is (HoldKind.USER if who == "owner" else HoldKind.ADMIN)


# k. a job that Slurm forgot


def test_a_job_that_a_killed_slurmctld_forgot_is_not_called_ended(
    world: LabWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld writes its state every five seconds: killed before that, it does not know the newest job. It may write
    right away, too: here it finds the files of the moment before the job came."""
    monkeypatch.setattr("controller.remediation.handlers.requeue.gone.RESTARTED_LOOK_S", 3.0)
    world.until(world.slurm.ping, "slurmctld answers")
    kept = world.lab.dir / "slurmctld"
    before = {path: path.read_bytes() for path in kept.glob("job_state*")}
    world.job_id = world.submit(WHOLE_NODE)
    job = world.enrol(world.job_id)
    action = world.order(job)
    world.lab.stop_slurmctld()
    for path in kept.glob("job_state*"):
        if path in before:
            path.write_bytes(before[path])
        else:
            path.unlink()
    world.lab.start_slurmctld()
    world.until(lambda: _answers(world), "slurmctld answers", 60)
    if world.slurm.read_job(world.job_id) is not None:
        pytest.fail("slurmctld kept the job: nothing is shown")
    world.until(lambda: _says(world, action, "was restarted at"), "it says that slurmctld was restarted", 20)
    world.carry_out(action)
    assert action.state == "refused" and "no accounting" in action.outcome and "may have forgotten" in action.outcome


def _answers(world: LabWorld) -> bool:
    return world.slurm.ping()
