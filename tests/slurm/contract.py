"""What every adapter of the port must do, as tests that run on the in-memory Slurm and on a real one.

`Bench` is what a test needs besides the port: to submit jobs as an ordinary user, to let time pass, to lose an answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Literal

import pytest

from controller.errors import RefusalKind, SlurmRefused, SlurmTimeout
from controller.slurm.port import SlurmPort
from controller.slurm.views import HoldKind, JobView, NodeView


class Bench(ABC):
    """Four idle nodes of 8 CPUs. `port` has the rights of SlurmUser, `owner_port` those of the jobs' owner."""

    port: SlurmPort
    owner_port: SlurmPort
    nodes: tuple[str, str, str, str]

    @abstractmethod
    def submit(
        self,
        nodes: int = 1,
        *,
        on: str = "",
        shared: bool = False,
        requeue: bool = True,
        held: bool = False,
        leaves: Literal["at once", "slowly", "by itself"] = "at once",
    ) -> str:
        """A batch job that runs until it is killed (`slowly`: and needs some seconds to go), or fails with code 3
        `by itself`. `on` is a node it must have; `shared` leaves room on its nodes for others."""

    @abstractmethod
    def submit_array(self, tasks: list[int]) -> list[str]: ...

    @abstractmethod
    def pass_time(self, seconds: float) -> None: ...

    @abstractmethod
    def lost_answer(self, call: str) -> AbstractContextManager[None]:
        """Inside, `call` times out; it takes effect after the block."""

    def until(self, true: Callable[[], object], seconds: float = 40) -> None:
        for _ in range(int(seconds / 0.25)):
            if true():
                return
            self.pass_time(0.25)
        raise AssertionError(f"not within {seconds} s")

    def job(self, job_id: str) -> JobView:
        job = self.port.read_job(job_id)
        assert job is not None
        return job

    def node(self, name: str) -> NodeView:
        node = self.port.read_node(name)
        assert node is not None
        return node

    def running(self, nodes: int = 1, **wishes: object) -> JobView:
        """A job that has been running for some seconds: killing one in its first moment shows other things."""
        job_id = self.submit(nodes, **wishes)  # type: ignore[arg-type]
        self.until(lambda: self.job(job_id).state.running)
        self.pass_time(1.0)
        return self.job(job_id)

    def idle_again(self, job_id: str) -> JobView:
        """The job once it has left COMPLETING."""
        self.until(lambda: not self.job(job_id).state.completing)
        return self.job(job_id)


def expect_refusal(kind: RefusalKind, call: Callable[[], None]) -> None:
    with pytest.raises(SlurmRefused) as caught:
        call()
    assert caught.value.kind is kind, caught.value.text
    assert caught.value.text


class SlurmContract:
    """Each test starts from an idle cluster without jobs; the subclass provides `bench`."""

    # reading

    def test_a_quiet_cluster(self, bench: Bench) -> None:
        view = bench.port.read_cluster()
        assert set(view.nodes) == set(bench.nodes)
        assert all(node.state.usable and node.state.base == "IDLE" for node in view.nodes.values())
        assert all(node.address and node.port and node.partitions for node in view.nodes.values())
        assert view.cluster and view.version.year >= 22 and view.next_job_id is not None
        assert view.nodes_at.tzinfo is not None and view.jobs_at >= view.nodes_at
        assert view.private_data == ()
        assert bench.port.ping() and bench.port.version() == view.version

    def test_a_running_job(self, bench: Bench) -> None:
        job = bench.running(2)
        view = bench.port.read_cluster()
        assert view.job(job.job_id) == view.jobs[job.job_id]
        assert len(job.nodes) == job.num_nodes == 2 and job.batch_host == job.nodes[0]
        assert job.requeue and job.batch and job.restarts == 0 and not job.held and job.state.live
        assert job.submit_time is not None and job.submit_time.tzinfo is UTC
        assert [found.job_id for found in view.jobs_on(job.nodes[1])] == [job.job_id]
        assert view.nodes[job.nodes[0]].occupied

    def test_unknown_is_none_only_when_slurm_says_so(self, bench: Bench) -> None:
        assert bench.port.read_job("99999") is None
        assert bench.port.read_job("99999_1") is None
        assert bench.port.read_array("99999") == []
        assert bench.port.read_node("nosuch") is None

    def test_partitions_and_no_accounting(self, bench: Bench) -> None:
        partitions = bench.port.read_cluster().partitions
        (name,) = {name for node in bench.port.read_cluster().nodes.values() for name in node.partitions}
        assert set(partitions[name].nodes) == set(bench.nodes) and partitions[name].starts_jobs
        since = datetime.fromtimestamp(0, UTC)
        expect_refusal(RefusalKind.DISABLED, lambda: bench.port.read_history("1", user="ada", since=since))

    # nodes

    def test_drain_keeps_the_job_and_resume_clears_it(self, bench: Bench) -> None:
        job = bench.running(1)
        name = job.nodes[0]
        bench.port.drain_node(name, 'relume: Xid=79, "fallen off" [inc 12]')
        node = bench.node(name)
        assert node.state.draining and not node.state.usable
        assert node.reason == 'relume: Xid=79, "fallen off" [inc 12]'
        assert node.reason_user and node.reason_at is not None
        assert bench.job(job.job_id).state.running
        bench.port.cancel_job(job.job_id)
        bench.until(lambda: bench.node(name).state.drained)
        bench.port.resume_node(name)
        bench.until(lambda: bench.node(name).state.usable)
        # 25.11 keeps the old reason on a node that is back (22.05 clears it): it says nothing about the state.
        assert bench.node(name).reason in ("", node.reason) and not bench.node(name).state.drain

    def test_a_second_reason_replaces_the_first(self, bench: Bench) -> None:
        """Why the policy must look first: the port overwrites somebody else's drain without a word."""
        name = bench.nodes[0]
        bench.port.drain_node(name, "somebody: cable")
        bench.port.drain_node(name, "relume: probe")
        assert bench.node(name).reason == "relume: probe"

    def test_nodes_refused(self, bench: Bench) -> None:
        expect_refusal(RefusalKind.BAD_NODES, lambda: bench.port.drain_node("nosuch", "x"))
        expect_refusal(RefusalKind.BAD_NODES, lambda: bench.port.resume_node("nosuch"))
        expect_refusal(RefusalKind.BAD_REQUEST, lambda: bench.port.resume_node(bench.nodes[0]))
        expect_refusal(RefusalKind.NOT_PERMITTED, lambda: bench.owner_port.drain_node(bench.nodes[0], "x"))
        assert bench.node(bench.nodes[0]).state.usable

    def test_down_requeues_ours_and_kills_the_neighbour(self, bench: Bench) -> None:
        name = bench.nodes[1]
        ours = bench.running(1, on=name, shared=True)
        neighbour = bench.running(1, on=name, shared=True, requeue=False)
        bench.port.drain_node(name, "relume: lost")
        bench.port.down_node(name, "relume: lost, now down")
        bench.until(lambda: bench.job(neighbour.job_id).state.terminal)
        assert bench.job(neighbour.job_id).state.base == "NODE_FAIL"
        assert bench.job(neighbour.job_id).state.blame == "infra"
        again = bench.idle_again(ours.job_id)
        assert again.state.pending and again.restarts == 1 and again.nodes == ()
        assert bench.node(name).state.drain
        assert bench.node(name).reason == "relume: lost, now down"

    def test_a_drain_outlives_the_return_of_the_node(self, bench: Bench) -> None:
        """With ReturnToService=2 a live slurmd undoes DOWN at once; DRAIN stays."""
        name = bench.nodes[2]
        bench.port.drain_node(name, "relume: lost")
        bench.port.down_node(name, "relume: lost")
        bench.pass_time(2.0)
        assert bench.node(name).state.drain and not bench.node(name).state.usable

    # reservations

    def test_nodes_reserved_for_the_owner_and_given_back(self, bench: Bench) -> None:
        """A pending job in a reservation starts there, and keeps the reservation from being deleted."""
        owner = bench.job(bench.submit(held=True)).user
        name, kept = "relume-contract", bench.nodes[2:]
        bench.port.reserve_nodes(name, kept, user=owner, minutes=5)
        found = bench.port.read_reservation(name)
        assert found is not None and found == bench.port.read_cluster().reservations[name]
        assert set(found.nodes) == set(kept) and found.users == (owner,) and found.active
        assert {"IGNORE_JOBS", "FLEX"} <= found.flags and found.end_time is not None and found.start_time is not None
        assert (found.end_time - found.start_time).total_seconds() == 300
        job_id = bench.submit(2, held=True)
        bench.port.set_reservation(job_id, name)
        assert bench.job(job_id).reservation == name
        expect_refusal(RefusalKind.IN_USE, lambda: bench.port.delete_reservation(name))
        bench.port.release_job(job_id)
        bench.until(lambda: bench.job(job_id).state.running)
        assert set(bench.job(job_id).nodes) == set(kept)
        bench.port.cancel_job(job_id)
        bench.idle_again(job_id)
        bench.port.delete_reservation(name)
        assert bench.port.read_reservation(name) is None

    def test_reservations_refused(self, bench: Bench) -> None:
        held = bench.submit(held=True)
        user, (first, second, *_) = bench.job(held).user, bench.nodes
        reserve = bench.port.reserve_nodes
        reserve("relume-taken", [first], user=user, minutes=5)
        for nodes, kind in (([first], RefusalKind.EXISTS), ([second], RefusalKind.EXISTS)):
            expect_refusal(kind, lambda nodes=nodes: reserve("relume-taken", nodes, user=user, minutes=5))  # type: ignore[misc]
        expect_refusal(RefusalKind.OVERLAPS, lambda: reserve("relume-2", [first, second], user=user, minutes=5))
        expect_refusal(RefusalKind.BAD_NODES, lambda: reserve("relume-3", [second, "nosuch"], user=user, minutes=5))
        assert set(bench.port.read_cluster().reservations) == {"relume-taken"}
        invalid = RefusalKind.INVALID_RESERVATION
        expect_refusal(invalid, lambda: bench.port.delete_reservation("nosuch"))
        expect_refusal(invalid, lambda: bench.port.set_reservation(held, "nosuch"))
        mine = bench.owner_port
        expect_refusal(RefusalKind.NOT_PERMITTED, lambda: mine.reserve_nodes("r", [second], user=user, minutes=5))
        expect_refusal(RefusalKind.NOT_PERMITTED, lambda: mine.delete_reservation("relume-taken"))
        bench.port.set_reservation(held, "relume-taken")
        bench.port.set_reservation(held, "")
        assert bench.job(held).reservation == ""
        bench.port.delete_reservation("relume-taken")

    # jobs

    def test_requeue_with_exclusion(self, bench: Bench) -> None:
        """The recipe, call by call: requeuehold, wait, exclude and StartTime, read back, release."""
        job = bench.running(2)
        bad = job.nodes[1]
        bench.port.requeue_job(job.job_id, hold=True)
        waiting = bench.idle_again(job.job_id)
        assert waiting.state.pending and waiting.restarts == 1
        assert waiting.hold_kind is HoldKind.REQUEUE_HOLD and waiting.priority == 0
        assert waiting.submit_time is not None and job.submit_time is not None
        assert waiting.submit_time > job.submit_time
        bench.pass_time(2.0)
        bench.port.exclude_nodes(job.job_id, [bad], start_time="now")
        assert bench.job(job.job_id).excluded_nodes == (bad,)
        assert bench.job(job.job_id).held
        bench.port.release_job(job.job_id)
        bench.until(lambda: bench.job(job.job_id).state.running)
        again = bench.job(job.job_id)
        assert bad not in again.nodes and len(again.nodes) == 2 and again.restarts == 1 and not again.held

    def test_requeue_is_not_idempotent(self, bench: Bench) -> None:
        job = bench.running()
        bench.port.requeue_job(job.job_id, hold=False)
        expect_refusal(RefusalKind.ALREADY_PENDING, lambda: bench.port.requeue_job(job.job_id, hold=False))
        bench.idle_again(job.job_id)
        bench.pass_time(2.0)
        bench.port.set_start_now(job.job_id)
        bench.until(lambda: bench.job(job.job_id).state.running)
        bench.pass_time(1.0)
        bench.port.requeue_job(job.job_id, hold=False)
        assert bench.job(job.job_id).restarts == 2

    def test_a_lost_answer_may_still_take_effect(self, bench: Bench) -> None:
        job = bench.running()
        with bench.lost_answer("requeue_job"), pytest.raises(SlurmTimeout) as lost:
            bench.port.requeue_job(job.job_id, hold=True)
        assert lost.value.outcome_unknown and lost.value.retry
        bench.until(lambda: bench.job(job.job_id).restarts == 1)
        bench.idle_again(job.job_id)
        assert bench.job(job.job_id).restarts == 1 and bench.job(job.job_id).held

    def test_start_now_while_completing_is_overwritten(self, bench: Bench) -> None:
        job = bench.running(leaves="slowly")
        bench.port.requeue_job(job.job_id, hold=True)
        assert bench.job(job.job_id).state.completing
        bench.port.exclude_nodes(job.job_id, [job.nodes[0]], start_time="now")
        waiting = bench.idle_again(job.job_id)
        assert waiting.excluded_nodes == (job.nodes[0],)  # this part stays
        assert waiting.start_time is not None and waiting.submit_time is not None
        assert (waiting.start_time - waiting.submit_time).total_seconds() >= 100

    def test_requeue_refused(self, bench: Bench) -> None:
        fixed = bench.running(requeue=False)
        held = bench.submit(held=True)
        expect_refusal(RefusalKind.NOT_REQUEUEABLE, lambda: bench.port.requeue_job(fixed.job_id, hold=True))
        expect_refusal(RefusalKind.ALREADY_PENDING, lambda: bench.port.requeue_job(held, hold=True))
        expect_refusal(RefusalKind.INVALID_JOB, lambda: bench.port.requeue_job("99999", hold=True))
        assert bench.job(fixed.job_id).state.running

    def test_exclusion_refused(self, bench: Bench) -> None:
        running = bench.running()
        expect_refusal(RefusalKind.NOT_PENDING, lambda: bench.port.exclude_nodes(running.job_id, [bench.nodes[3]]))
        expect_refusal(RefusalKind.NOT_PENDING, lambda: bench.port.set_start_now(running.job_id))
        held = bench.submit(held=True)
        bench.port.exclude_nodes(held, [bench.nodes[0]])
        expect_refusal(RefusalKind.BAD_NODES, lambda: bench.port.exclude_nodes(held, [bench.nodes[1], "nosuch"]))
        assert bench.job(held).excluded_nodes == (bench.nodes[0],)
        bench.port.exclude_nodes(held, [bench.nodes[2], bench.nodes[1]])
        assert set(bench.job(held).excluded_nodes) == {bench.nodes[1], bench.nodes[2]}
        bench.port.exclude_nodes(held, [])
        assert bench.job(held).excluded_nodes == ()

    def test_excluding_too_many_and_fewer_again(self, bench: Bench) -> None:
        job_id = bench.submit(2, held=True)
        bench.port.exclude_nodes(job_id, bench.nodes[:3], start_time="now")
        bench.port.release_job(job_id)
        bench.until(lambda: bench.job(job_id).reason == "BadConstraints")
        stuck = bench.job(job_id)
        assert stuck.priority == 0 and not stuck.held
        bench.port.exclude_nodes(job_id, bench.nodes[:1])
        bench.until(lambda: bench.job(job_id).state.running)

    def test_whose_hold_it_is(self, bench: Bench) -> None:
        theirs = bench.submit(held=True)
        assert bench.job(theirs).hold_kind is HoldKind.USER
        ours = bench.running()
        bench.port.hold_job(ours.job_id)
        assert bench.job(ours.job_id).state.running and bench.job(ours.job_id).hold_kind is HoldKind.ADMIN
        bench.port.requeue_job(ours.job_id, hold=False)
        assert bench.idle_again(ours.job_id).hold_kind is HoldKind.ADMIN
        bench.port.release_job(ours.job_id)
        bench.port.release_job(ours.job_id)
        assert not bench.job(ours.job_id).held
        bench.port.release_job(theirs)
        assert not bench.job(theirs).held

    def test_a_hold_over_a_requeue_hold_changes_nothing(self, bench: Bench) -> None:
        job = bench.running()
        bench.port.requeue_job(job.job_id, hold=True)
        bench.idle_again(job.job_id)
        bench.port.hold_job(job.job_id)
        assert bench.job(job.job_id).hold_kind is HoldKind.REQUEUE_HOLD

    def test_array_tasks_are_requeued_and_excluded_singly(self, bench: Bench) -> None:
        first, second = bench.submit_array([1, 2])
        bench.until(lambda: bench.job(first).state.running and bench.job(second).state.running)
        bench.pass_time(1.0)
        parent = first.partition("_")[0]
        assert second == f"{parent}_2" and bench.job(second).array_task_id == 2
        raw = str(bench.job(first).raw_id)
        assert bench.job(raw).job_id == first
        assert {job.job_id for job in bench.port.read_array(parent)} == {first, second}
        bench.port.requeue_job(first, hold=True)
        bench.idle_again(first)
        bench.port.exclude_nodes(first, [bench.nodes[0]])
        assert bench.job(first).excluded_nodes == (bench.nodes[0],) and bench.job(first).restarts == 1
        assert bench.job(second).excluded_nodes == () and bench.job(second).state.running

    def test_cancel_and_comment(self, bench: Bench) -> None:
        job = bench.running()
        bench.port.update_comment(job.job_id, 'relume: run=7f3a "x" Requeue=0')
        assert bench.job(job.job_id).comment == 'relume: run=7f3a "x" Requeue=0'
        assert bench.job(job.job_id).requeue is True
        bench.port.cancel_job(job.job_id, signal="CONT")
        assert bench.job(job.job_id).state.running
        bench.port.cancel_job(job.job_id)
        bench.until(lambda: bench.job(job.job_id).state.terminal)
        assert bench.job(job.job_id).state.base == "CANCELLED"
        for call in (bench.port.hold_job, bench.port.release_job, bench.port.set_start_now, bench.port.cancel_job):
            expect_refusal(RefusalKind.JOB_FINISHED, lambda call=call: call(job.job_id))  # type: ignore[misc]
        expect_refusal(RefusalKind.INVALID_JOB, lambda: bench.port.cancel_job("99999"))
        expect_refusal(RefusalKind.INVALID_JOB, lambda: bench.port.hold_job("99999"))

    def test_a_job_that_failed_can_be_requeued_as_long_as_slurm_remembers_it(self, bench: Bench) -> None:
        job_id = bench.submit(leaves="by itself")
        bench.until(lambda: bench.job(job_id).state.terminal)
        failed = bench.job(job_id)
        assert failed.state.base == "FAILED" and (failed.exit_code, failed.exit_signal) == (3, 0)
        assert failed.nodes and not failed.state.live
        bench.port.requeue_job(job_id, hold=True)
        again = bench.idle_again(job_id)
        assert again.state.pending and again.restarts == 1 and again.hold_kind is HoldKind.REQUEUE_HOLD

    @pytest.mark.parametrize("bad", ["1.batch", "7;scancel", "1 2", "", "1\n2", "--help"])
    def test_what_is_no_job_id_never_reaches_slurm(self, bench: Bench, bad: str) -> None:
        for call in (bench.port.hold_job, bench.port.release_job, bench.port.cancel_job, bench.port.read_job):
            with pytest.raises(ValueError):
                call(bad)

    @pytest.mark.parametrize("bad", ["gpu[1-2]", "gpu1,gpu2", "", "ALL x", "gpu1\n", "-a b"])
    def test_what_is_no_node_name_never_reaches_slurm(self, bench: Bench, bad: str) -> None:
        with pytest.raises(ValueError):
            bench.port.drain_node(bad, "x")
        with pytest.raises(ValueError):
            bench.port.exclude_nodes("1", [bad])

    def test_a_reason_is_one_line_and_never_empty(self, bench: Bench) -> None:
        for bad in ("", "  ", "a\nb", "a\x1b[31m"):
            with pytest.raises(ValueError):
                bench.port.drain_node(bench.nodes[0], bad)
        assert not bench.node(bench.nodes[0]).state.drain
