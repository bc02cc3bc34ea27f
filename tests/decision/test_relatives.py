"""Relatives of the given cases as data: other spellings, orders, numbers, missing keys, and the opposite verdict."""

import json
from pathlib import Path
from typing import Any

import pytest

from controller.decision.assessment import Assessment
from tests.decision.given import judged

pytestmark = pytest.mark.pure
LISTS = ("suspect_nodes", "suspect_ranks", "drain", "exclude")


def relatives() -> list[Any]:
    paths = sorted(Path(__file__).parent.glob("relatives_*.jsonl"))
    cases = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [pytest.param(case["input"], case["expected"], id=case["id"]) for case in cases]


def holds(found: Assessment, key: str, wanted: Any) -> bool:
    """`verdict`: one, or a list of which each is right (so `verdict_in`); `verdict_not`: a list. `suspect_rank`: the
    only one. `requeue`: true, false, or words of the answer ("text": any words). `per_node`: keys of a node's view."""
    if key == "verdict_in" or (key == "verdict" and isinstance(wanted, list)):
        return found.verdict in wanted
    if key == "per_node":
        views = {name: found.per_node.get(name) for name in wanted}
        return all(getattr(views[name], each, None) == value for name in wanted for each, value in wanted[name].items())
    if key == "verdict_not":
        return found.verdict not in wanted
    if key == "suspect_rank":
        return found.suspect_ranks == (wanted,)
    if key == "requeue" and isinstance(wanted, str):
        return isinstance(found.requeue, str) and (wanted == "text" or wanted in found.requeue)
    got = getattr(found, key)
    return sorted(got) == sorted(wanted) if key in LISTS else bool(got == wanted)


@pytest.mark.parametrize(("data", "expected"), relatives())
def test_relative(data: dict[str, Any], expected: dict[str, Any]) -> None:
    found = judged(data)
    wrong = {
        key: getattr(found, key, found.verdict) for key, wanted in expected.items() if not holds(found, key, wanted)
    }
    assert not wrong, found.why
