"""What the in-memory Slurm offers besides the contract: its clock, its rules for nodes and jobs, its accounting."""

from __future__ import annotations

import pytest

from controller.errors import RefusalKind, SlurmRefused
from controller.slurm.views import HoldKind
from tests.slurm.fake_stage import Clock, job, made

pytestmark = pytest.mark.pure


def test_a_silent_host_is_noticed_in_slurms_own_time() -> None:
    clock = Clock()
    slurm = made(clock, not_responding_after=5, slurmd_timeout=300)
    job_id = slurm.submit(num_nodes=2)
    assert job(slurm, job_id).nodes == ("gpu1", "gpu2")
    slurm.kill_host("gpu2")
    clock.pass_time(4)
    assert slurm.read_cluster().nodes["gpu2"].state.responding
    clock.pass_time(2)
    assert not slurm.read_cluster().nodes["gpu2"].state.responding and job(slurm, job_id).state.running
    clock.pass_time(300)
    node = slurm.read_cluster().nodes["gpu2"]
    assert node.state.down and (node.reason, node.reason_user) == ("Not responding", "slurm")
    assert job(slurm, job_id).restarts == 1
    slurm.restore_host("gpu2")
    assert slurm.read_cluster().nodes["gpu2"].state.usable  # ReturnToService=2


def test_down_without_drain_does_not_last_on_a_living_node() -> None:
    clock = Clock()
    slurm = made(clock)
    slurm.down_node("gpu1", "relume: lost")
    assert slurm.read_cluster().nodes["gpu1"].state.usable
    slurm.drain_node("gpu1", "relume: lost")
    slurm.down_node("gpu1", "relume: lost")
    assert slurm.read_cluster().nodes["gpu1"].state.drained


def test_the_requeue_delay_of_two_minutes() -> None:
    clock = Clock()
    slurm = made(clock)
    job_id = slurm.submit()
    assert job(slurm, job_id).state.running
    slurm.requeue_job(job_id, hold=False)
    clock.pass_time(100)
    assert job(slurm, job_id).state.pending and job(slurm, job_id).reason == "BeginTime"
    clock.pass_time(100 + 121)
    assert job(slurm, job_id).state.running


def test_completing_may_be_counted_in_readings() -> None:
    clock = Clock()
    slurm = made(clock, completing=0, completing_reads=2)
    job_id = slurm.submit()
    slurm.tick()
    slurm.requeue_job(job_id, hold=True)
    assert [job(slurm, job_id).state.completing for _ in range(4)] == [True, True, False, False]


def test_a_start_too_soon_after_the_kill_fails() -> None:
    clock = Clock()
    slurm = made(clock, completing=0.1, too_quick_start=2.0)
    hasty, patient = slurm.submit(), slurm.submit()
    slurm.tick()
    for job_id, pause in ((hasty, 0.5), (patient, 2.5)):
        slurm.requeue_job(job_id, hold=False)
        clock.pass_time(pause)
        assert job(slurm, job_id).state.pending
        slurm.set_start_now(job_id)
        slurm.tick()
        clock.pass_time(0.2)
    assert (job(slurm, hasty).state.base, job(slurm, hasty).exit_code) == ("FAILED", 1)
    assert job(slurm, patient).state.running


def test_a_job_that_waits_takes_the_nodes_of_a_held_one() -> None:
    clock = Clock()
    slurm = made(clock)
    ours = slurm.submit(num_nodes=3)
    slurm.tick()
    theirs = slurm.submit(num_nodes=2)
    slurm.requeue_job(ours, hold=True)
    clock.pass_time(5)
    assert job(slurm, theirs).state.running
    slurm.exclude_nodes(ours, [], start_time="now")
    slurm.release_job(ours)
    assert job(slurm, ours).reason == "Resources"


def test_every_effect_is_counted_once_and_refusals_never() -> None:
    clock = Clock()
    slurm = made(clock)
    job_id = slurm.submit()
    slurm.tick()
    slurm.requeue_job(job_id, hold=True)
    with pytest.raises(SlurmRefused):
        slurm.requeue_job(job_id, hold=True)
    slurm.drain_node("gpu1", "relume: x")
    slurm.drain_node("gpu1", "relume: x")
    assert [(effect.kind, effect.target) for effect in slurm.effects()] == [
        ("requeuehold", job_id),
        ("drain", "gpu1"),
        ("drain", "gpu1"),
    ]
    assert len(slurm.effects("requeuehold", job_id)) == 1 and slurm.effects("release") == []
    assert slurm.effects("drain")[0].at == clock.now.timestamp()


def test_an_owner_may_act_on_own_jobs_only() -> None:
    slurm = made(Clock())
    own, foreign = slurm.submit(user="ada"), slurm.submit(user="eve")
    ada = slurm.seen_by("ada")
    ada.hold_job(own)
    assert job(slurm, own).hold_kind is HoldKind.USER
    with pytest.raises(SlurmRefused) as refused:
        ada.hold_job(foreign)
    assert refused.value.kind is RefusalKind.NOT_PERMITTED


def test_a_reservation_keeps_the_survivors_and_its_end_sets_the_job_free() -> None:
    """Others pass by; the job may take a node outside as well (FLEX), and is not held when it ends."""
    clock = Clock()
    slurm = made(clock)
    slurm.add_nodes("gpu4")
    ours = slurm.submit(num_nodes=2)
    slurm.tick()
    slurm.reserve_nodes("relume-1", ["gpu1"], user="ada", minutes=5)
    slurm.drain_node("gpu2", "relume: lost")
    theirs = slurm.submit(num_nodes=3, user="eve")
    slurm.requeue_job(ours, hold=True)
    clock.pass_time(3)
    assert job(slurm, theirs).state.pending  # of gpu1, gpu3 and gpu4
    assert slurm.read_cluster().nodes["gpu1"].state.flags >= {"RESERVED"}
    slurm.set_reservation(ours, "relume-1")
    slurm.exclude_nodes(ours, ["gpu2"], start_time="now")
    slurm.release_job(ours)
    slurm.tick()
    assert set(job(slurm, ours).nodes) == {"gpu1", "gpu3"}
    waiting = slurm.submit(num_nodes=4, reservation="relume-1")
    clock.pass_time(301)
    assert slurm.read_reservation("relume-1") is None
    assert job(slurm, ours).state.running and job(slurm, ours).reservation == ""
    assert not job(slurm, waiting).held and job(slurm, waiting).reservation == ""


def test_another_reservation_that_ends_holds_what_waits_in_it() -> None:
    clock = Clock()
    slurm = made(clock)
    slurm.add_reservation("class", ["gpu1"], ["ada"], end=clock.now.timestamp() + 60)
    waiting = slurm.submit(num_nodes=2, reservation="class")
    slurm.tick()
    assert job(slurm, waiting).state.pending, "without FLEX its job is kept to its nodes"
    clock.pass_time(61)
    assert job(slurm, waiting).hold_kind is HoldKind.RESERVATION_DELETED


def test_accounting_keeps_every_start_after_slurmctld_forgot_the_job() -> None:
    clock = Clock()
    slurm = made(clock)
    begun = clock.now
    job_id = slurm.submit()
    slurm.tick()
    slurm.requeue_job(job_id, hold=False)
    clock.pass_time(200)
    slurm.tick()
    slurm.end_job(job_id, "COMPLETED")
    slurm.forget(job_id)
    assert slurm.read_job(job_id) is None
    first, second = slurm.read_history(job_id, user="ada", since=begun)
    assert "REQUEUED" in first.state.flags and second.state.base == "COMPLETED"
    assert second.submit_time is not None and first.submit_time is not None and second.submit_time > first.submit_time
    assert slurm.read_history(job_id, user="eve", since=begun) == []
    clock.pass_time(1)
    assert slurm.read_history(job_id, user="ada", since=clock.now) == []
    with pytest.raises(SlurmRefused) as refused:
        made(clock, accounting=False).read_history(job_id, user="ada", since=begun)
    assert refused.value.kind is RefusalKind.DISABLED


def test_a_partition_that_is_down_starts_nothing_and_features_are_looked_at() -> None:
    clock = Clock()
    slurm = made(clock)
    slurm.add_nodes("big1", partitions=["big"], features=["h200"])
    slurm.add_partition("train", state="DOWN", hidden=True)
    waiting, big, wrong = slurm.submit(), slurm.submit(partition=["big"]), slurm.submit(partition=["big"], features="a")
    slurm.tick()
    assert job(slurm, waiting).state.pending and job(slurm, big).state.running
    assert job(slurm, wrong).reason == "BadConstraints"
    partitions = slurm.read_cluster().partitions
    assert partitions["big"].nodes == ("big1",) and partitions["big"].starts_jobs
    assert partitions["train"].hidden and not partitions["train"].starts_jobs


def test_a_het_job_is_requeued_held_and_started_whole_and_excludes_by_component() -> None:
    """As seen on 22.05: the number names all components, `number+offset` one, and DOWN under one requeues all."""
    clock = Clock()
    slurm = made(clock)
    slurm.add_nodes("gpu4")
    leader, second = slurm.submit_het([{}, {}])
    slurm.tick()
    assert (leader, second) == ("1", "2") and job(slurm, f"{leader}+1").raw_id == 2
    assert [part.het_job_offset for part in slurm.read_array(leader)] == [0, 1]
    slurm.drain_node("gpu2", "relume: lost")
    slurm.down_node("gpu2", "relume: lost")
    clock.pass_time(2)
    assert {job(slurm, part).restarts for part in (leader, second)} == {1}
    slurm.hold_job(leader)
    slurm.exclude_nodes(f"{leader}+1", ["gpu1"], start_time="now")
    assert job(slurm, leader).excluded_nodes == () and job(slurm, second).excluded_nodes == ("gpu1",)
    slurm.release_job(leader)
    slurm.tick()
    assert job(slurm, second).state.pending, "the other component is not due yet"
    slurm.set_start_now(leader)
    slurm.tick()
    assert job(slurm, leader).nodes == ("gpu1",) and job(slurm, second).nodes == ("gpu3",)
