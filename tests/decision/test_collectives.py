"""Who is behind in the collectives: only inside one group, several at once, and nobody where the numbers are equal."""

import random

import pytest

from controller.decision.assess.collective_words import unfold
from controller.decision.assess.collectives import MISMATCH, NOT_ENTERED, NOT_FINISHED, SILENT, behind
from controller.decision.evidence import JOB, Evidence

pytestmark = pytest.mark.pure


def state(rank, group="0", members="0-3", enqueued=10, completed=10, **attrs):
    """One rank's word on one group: idle after operation 10, unless told otherwise."""
    waiting = max(0, enqueued - completed)
    oldest = {"op": "all_reduce", "sequence": completed + 1, "sizes": "[[8]]", "dtypes": "Float"} if waiting else {}
    values = {"group": group, "members": members, "enqueued": enqueued, "completed": completed, "waiting": waiting}
    return sign("collective.state", rank, {**values, **oldest, **attrs})


def p2p(rank, peer, group="pp", members="0-3"):
    return state(
        rank, group, members, waiting=1, p2p=True, peer_rank=peer, p2p_enqueued=7 * rank, op="send", sequence=7
    )


def sign(code, rank, attrs):
    name = f"{code}-{rank}-{sorted(attrs.items())}"
    return Evidence(name, code, "library", "flight_recorder", JOB, "", None, None, rank, attrs)


def named(*evidence):
    return [(suspect.rank, suspect.kind) for suspect in behind(evidence)]


def waits(rank, **attrs):
    return state(rank, enqueued=11, completed=10, **attrs)


def test_the_rank_that_did_not_enter_is_behind():
    found = behind([waits(0), waits(1), state(2), waits(3)])
    assert [(suspect.rank, suspect.kind) for suspect in found] == [(2, NOT_ENTERED)]
    assert found[0].proof[0] == state(2).id
    assert "operation 11" in found[0].why


def test_the_rank_that_does_not_finish_what_its_peers_finished_is_behind():
    stuck = state(1, enqueued=12, completed=6)
    assert named(waits(0), stuck, waits(2), waits(3)) == [(1, NOT_FINISHED)]


def test_several_ranks_at_once():
    assert named(waits(0), state(1), waits(2), state(3)) == [(1, NOT_ENTERED), (3, NOT_ENTERED)]


def test_equal_numbers_name_nobody():
    assert named(*(waits(rank) for rank in range(4))) == []
    assert named(*(state(rank) for rank in range(4))) == []


def test_numbers_of_two_groups_are_never_compared():
    ahead = [state(rank, "1", "0-1", enqueued=500, completed=499) for rank in (0, 1)]
    early = [state(rank, "2", "2-3", enqueued=3, completed=2) for rank in (2, 3)]
    assert named(*ahead, *early) == []


def test_the_same_name_with_other_members_is_another_group():
    assert named(state(0, "1", "0-1", 500, 499), state(1, "1", "0-1", 500, 499), state(2, "1", "2-3")) == []


def test_a_rank_that_waits_elsewhere_is_excused_and_its_wait_is_followed():
    pair = [state(0, "tp", "0-1", 11, 10), state(1, "tp", "0-1")]  # 1 did not enter: it waits in another group
    others = [state(1, "dp", "1,3", 21, 20), state(3, "dp", "1,3", 20, 20)]
    assert named(*pair, *others) == [(3, NOT_ENTERED)]


def test_ranks_that_wait_for_each_other_in_collectives_are_not_named():
    """Their programs disagree about the order of two groups."""
    first = [state(0, "a", "0-1", 11, 10), state(1, "a", "0-1")]
    second = [state(1, "b", "0-1", 11, 10), state(0, "b", "0-1")]
    assert named(*first, *second) == []


def test_a_pipeline_is_followed_to_the_stage_that_is_stuck():
    assert named(p2p(0, 1), p2p(1, 2), p2p(2, 3), state(3, "pp", waiting=0)) == [(3, NOT_ENTERED)]


def test_stages_that_wait_for_each_other_name_nobody_and_their_counters_are_not_compared():
    assert named(p2p(0, 1), p2p(1, 0)) == []


def test_the_silent_minority_is_named_only_if_nobody_who_spoke_explains_the_wait():
    assert named(waits(0), waits(1), waits(3)) == [(2, SILENT)]
    assert named(waits(0), state(1), waits(3)) == [(1, NOT_ENTERED)]
    assert named(waits(0), waits(1)) == []  # half of them silent: perhaps their dumps could not be read


def test_an_awaited_rank_is_not_excused_by_a_peer_that_left_no_word():
    stuck = [state(3), p2p(3, 7, members="3,7")]
    assert named(waits(0), waits(1), waits(2), *stuck) == [(3, NOT_ENTERED)]


def test_the_few_that_call_something_else_are_named():
    assert named(waits(0), waits(1), waits(2, op="broadcast"), waits(3)) == [(2, MISMATCH)]
    assert named(waits(0), waits(1, sizes="[[9]]"), waits(2), waits(3)) == [(1, MISMATCH)]
    assert named(waits(0, members="0-1"), waits(1, members="0-1", sizes="[[9]]")) == []


def test_sizes_may_differ_where_the_operation_lets_them():
    assert named(*(waits(rank, op="all_to_all", sizes=f"[[{rank}]]") for rank in range(4))) == []


def status(rank, work, enqueued, completed, group="1"):
    attrs = {"work": work, "enqueued": enqueued, "completed": completed, "group": group}
    return sign("nccl.watchdog_status", rank, attrs)


def test_the_watchdog_lines_alone_are_enough():
    lines = [status(0, 412, 414, 411), status(3, 412, 414, 411), status(5, 411, 411, 411)]
    assert named(*lines) == [(5, NOT_ENTERED)]
    assert named(*lines[:2], status(5, 411, 411, 411, group="2")) == []


def test_a_timeout_beside_a_status_of_the_same_rank_changes_nothing():
    timeout = sign("nccl.watchdog_timeout", 0, {"sequence": 412, "op": "ALLREDUCE", "group": "1"})
    assert named(timeout, status(0, 412, 414, 411), status(5, 411, 411, 411)) == [(5, NOT_ENTERED)]


@pytest.mark.parametrize("seed", range(5))
def test_neither_order_nor_repetition_changes_the_answer(seed):
    evidence = [waits(0), state(1), waits(2), p2p(2, 1), waits(3), status(0, 11, 11, 10, "0")]
    shuffled = evidence * 2
    random.Random(seed).shuffle(shuffled)
    assert behind(shuffled) == behind(evidence)


@pytest.mark.parametrize("members", ["\u00b2", "0-\u00b2", "0:\u0663", "9" * 2000, ",".join(["0-65536"] * 3)])
def test_members_that_no_dump_writes_are_unknown(members: str) -> None:
    """A job's agent may send anything: it must neither stop the decisions about its run nor fill the memory."""
    assert unfold(members) == frozenset()
