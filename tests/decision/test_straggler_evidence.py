"""Who is slower than its equals, out of what ranks told of their own work: evidence, and never more than that."""

import json
from dataclasses import replace

import pytest

from controller.decision.codec import subject_from_json
from controller.decision.detectors import detect
from controller.decision.progress_evidence import evidence as of_progress
from controller.decision.straggler_evidence import MOST_NAMED, Window, evidence, read_windows, write_windows
from controller.knowledge.load import load
from tests.decision.quiet import NOW, POLICY, attempt, subject
from worker_hooks.signs.codes import layer_of

pytestmark = pytest.mark.pure


def told(roles: dict[int, str], slow: dict[int, float], ranks: int = 8, steps: int = 20) -> tuple[str, ...]:
    """Two ranks a node; every rank's own work takes about 0.4 s, times its factor."""
    windows = {
        rank: Window(
            roles.get(rank, ""),
            {step: (0.4 + 0.001 * ((step + rank) % 3)) * slow.get(rank, 1.0) for step in range(100, 100 + steps)},
        )
        for rank in range(ranks)
    }
    pairs = [{rank: windows[rank], rank + 1: windows[rank + 1]} for rank in range(0, ranks, 2)]
    return tuple(json.dumps(write_windows(pair)) for pair in pairs)


STAGES = {rank: f"stage {rank // 4}" for rank in range(8)}


def named(texts: tuple[str, ...]) -> list[int | None]:
    pieces = evidence("tj-1", attempt(work=texts))
    assert all(p.code == "progress.straggler" and p.layer == layer_of(p.code) and p.origin == "job" for p in pieces)
    return [piece.rank for piece in pieces]


def test_one_that_is_slower_than_its_own_stage() -> None:
    (piece,) = evidence("tj-1", attempt(work=told(STAGES, {5: 2.5})))
    assert (piece.rank, piece.attrs["role"], piece.job) == (5, "stage 1", "tj-1")
    assert piece.attrs["slowdown"] == pytest.approx(2.5, abs=0.05)
    assert piece.raw == (
        "rank 5 (stage 1) takes 2.5 times as long as its equals for its own work, in 100% of the last steps"
    )


def test_a_slow_stage_is_nobodys_fault() -> None:
    assert named(told(STAGES, dict.fromkeys(range(4, 8), 3.0))) == []


def test_without_any_role_all_ranks_are_equals() -> None:
    assert named(told({}, {6: 1.6, 1: 2.0})) == [1, 6]


def test_a_rank_without_a_role_is_left_out_where_others_have_one() -> None:
    roles = {rank: role for rank, role in STAGES.items() if rank != 5}
    assert named(told(roles, {5: 3.0})) == []
    assert named(told(roles, {5: 3.0, 2: 2.0})) == [2]


def test_a_few_steps_say_nothing() -> None:
    assert named(told({}, {6: 2.0}, steps=7)) == [] != named(told({}, {6: 2.0}, steps=8))


def test_texts_that_cannot_be_read_say_nothing() -> None:
    texts = told({}, {6: 2.0})
    assert named((*texts, "{", "[]", '{"x": {}}', '{"9": {"role": "", "steps": [1], "seconds": []}}')) == [6]
    assert named(()) == named(("",)) == []


def test_it_is_bounded() -> None:
    assert len(named(told({}, dict.fromkeys(range(0, 80, 2), 3.0), ranks=200))) == MOST_NAMED


def test_windows_are_read_as_they_were_written() -> None:
    windows = {3: Window("stage 0", {7: 0.25, 8: 0.5}), 10: Window()}
    assert read_windows(json.dumps(write_windows(windows))) == windows and read_windows("") == {}


def test_it_stands_with_what_progress_says_and_opens_nothing() -> None:
    policy = replace(POLICY, knowledge=load())
    of_run = subject(attempt=attempt(work=told(STAGES, {5: 2.5})))
    assert [piece.code for piece in of_progress(of_run, NOW, policy)] == ["progress.straggler"]
    assert detect(of_run, NOW, policy) is None
    again = subject_from_json(json.loads(json.dumps(of_run.to_json())))
    assert of_progress(again, NOW, policy) == of_progress(of_run, NOW, policy)
