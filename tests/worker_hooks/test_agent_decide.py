"""The table in `decide`, line by line."""

import pytest

from worker_hooks.agent.decide import GO_ON, RankEnd, Situation, decide

pytestmark = pytest.mark.pure


def ended(rank: int, code: int | None = 0, signal: int | None = None, order: int = 0) -> RankEnd:
    return RankEnd(rank, code, signal, order)


def test_running_ranks_go_on() -> None:
    assert decide(Situation(running=2)) is GO_ON


def test_a_rank_that_finished_first_waits_for_the_others() -> None:
    assert decide(Situation(running=1, ends=(ended(0),))).exit_code is None


def test_every_rank_finished() -> None:
    assert decide(Situation(running=0, ends=(ended(0), ended(1)))).exit_code == 0


def test_the_first_failure_counts() -> None:
    ends = (ended(0, 1, order=1), ended(1, None, 11, order=0))
    verdict = decide(Situation(running=0, ends=ends))
    assert verdict.exit_code == 75 and "rank 1" in verdict.reason and "signal 11" in verdict.reason


@pytest.mark.parametrize("code", [76, 77])
def test_superseded_and_not_verified_count_wherever_they_come(code: int) -> None:
    ends = (ended(0, None, 9, order=0), ended(1, code, order=1))
    assert decide(Situation(running=0, ends=ends)).exit_code == code


def test_a_signal_to_the_agent_beats_everything() -> None:
    verdict = decide(Situation(running=1, ends=(ended(0, 3),), got_signal=15, superseded_by=4, stop_reason="x"))
    assert verdict.exit_code == 1


def test_a_superseded_attempt_ends_even_if_every_rank_finished() -> None:
    assert decide(Situation(running=0, ends=(ended(0),), superseded_by=3)).exit_code == 76


@pytest.mark.parametrize(("nodes", "lingers"), [(1, False), (2, True)])
def test_an_ordinary_failure_lingers_only_where_there_are_peers(nodes: int, lingers: bool) -> None:
    verdict = decide(Situation(running=1, ends=(ended(0, 1),), node_count=nodes))
    assert (verdict.exit_code, verdict.lingers) == (1, lingers)


@pytest.mark.parametrize("end", [ended(0, None, 9), ended(0, 75), ended(0, 77), ended(0, 76)])
def test_a_failure_with_a_cause_of_its_own_does_not_linger(end: RankEnd) -> None:
    assert not decide(Situation(running=1, ends=(end,), node_count=2)).lingers


def test_a_program_that_could_not_start_does_not_linger() -> None:
    verdict = decide(Situation(running=0, ends=(RankEnd(0, 127, None, 0, launched=False),), node_count=2))
    assert (verdict.exit_code, verdict.lingers) == (127, False)


def test_stopping_waits_for_the_ranks_and_then_does_not() -> None:
    assert decide(Situation(running=1, stop_reason="x")).exit_code is None
    assert decide(Situation(running=1, stop_reason="x", stop_time_over=True)).exit_code == 75
    assert decide(Situation(running=0, ends=(ended(0, 1),), stop_reason="x")).exit_code == 75
