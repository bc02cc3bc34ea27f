"""What every adapter of the port must do with jobs: requeue, exclude, hold, cancel. A part of `SlurmContract`."""

from __future__ import annotations

import pytest

from controller.errors import RefusalKind, SlurmTimeout
from controller.slurm.views import HoldKind
from tests.slurm.bench import Bench, expect_refusal


class JobContract:
    """Each test starts from an idle cluster without jobs; the subclass provides `bench`."""

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
