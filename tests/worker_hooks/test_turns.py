"""Whether a save is taken: one answer for all ranks, asked again where a step was left out."""

import pytest

from worker_hooks.training.saving.turns import SharedTurns, Turns

pytestmark = pytest.mark.torch


class Board:
    """The ranks' store, in one process."""

    def __init__(self) -> None:
        self.words: dict[str, str] = {}

    def claim(self, key: str, value: str) -> str:
        return self.words.setdefault(key, value)

    def read(self, key: str) -> str | None:
        return self.words.get(key)

    def write(self, key: str, value: str) -> None:
        self.words[key] = value

    def add(self, key: str, count: int) -> int:
        self.words[key] = str(int(self.words.get(key, "0")) + count)
        return int(self.words[key])


def test_a_step_that_was_left_out_is_taken_when_it_is_asked_for_again() -> None:
    """The last step of a run falls due while a save is in flight; at the end it must be saved all the same."""
    board: SharedTurns = Board()  # type: ignore[assignment]
    first, second = (Turns(2, board, lambda: True) for _ in range(2))
    assert (first.begin(2), second.begin(2)) == (True, True)
    board.add("done/2", 1)
    assert (first.begin(4), second.begin(4)) == (False, False)
    board.add("done/2", 1)
    assert (second.begin(4), first.begin(4)) == (True, True)


def test_ranks_that_ask_at_other_moments_get_the_same_answer() -> None:
    board: SharedTurns = Board()  # type: ignore[assignment]
    first, second = (Turns(2, board, lambda: True) for _ in range(2))
    assert (first.begin(2), second.begin(2)) == (True, True)
    assert first.begin(4) is False
    board.add("done/2", 2)
    assert second.begin(4) is False, "what the first one was told counts"


def test_a_rank_knows_of_its_own_failure_when_the_store_is_gone() -> None:
    """The rank that holds the store may end first, with the same error; this one must not end well."""
    board: SharedTurns = Board()  # type: ignore[assignment]
    first, second = (Turns(2, board, lambda: True) for _ in range(2))
    assert (first.begin(2), second.begin(2)) == (True, True)

    def gone(*said: object) -> str | None:
        raise RuntimeError("Connection reset by peer")

    second.done(2, {"shared": "no space"})
    board.read = gone  # type: ignore[method-assign]
    assert second.failure(2, "shared") is None, "somebody may still be writing"
    assert second.own_failure(2, "shared") == "no space"
    assert first.own_failure(2, "shared") is None
