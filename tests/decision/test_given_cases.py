"""Every attribution case that was given, through the whole chain, with what it expects."""

from collections.abc import Mapping
from typing import Any

import pytest

from controller.bundles.answer import answer
from controller.decision.assess import assess
from tests.decision.given import cases_of, given, knowledge

pytestmark = pytest.mark.pure
# Sentences about what must hold; the tests beside this one check them.
IN_WORDS = frozenset({"must", "must_not", "why", "per_node"})


def scenes() -> list[tuple[str, str]]:
    return [(name, scene) for name, case in given().items() for scene in _names(case["expected"])]


def _names(expected: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in expected if key.startswith("scenario_")) or [""]


@pytest.mark.parametrize(("name", "scene"), scenes())
def test_a_given_case(name: str, scene: str) -> None:
    expected = given()[name]["expected"]
    expected = expected[scene] if scene else expected
    case = cases_of(given()[name]["input"])[scene]
    said = answer(case, assess(case, knowledge()))
    for key in expected.keys() - IN_WORDS - {"basis", "drain_mode"}:
        assert said[key] == expected[key], key
    for node, view in expected.get("per_node", {}).items():
        assert {key: said["per_node"][node][key] for key in view} == view, node
    assert expected.get("drain_mode", "") in (said["drain_mode"] or "")
    assert said["why"]


@pytest.mark.parametrize("name", sorted(given()))
def test_a_verdict_stands_on_lines_that_are_there(name: str) -> None:
    for case in cases_of(given()[name]["input"]).values():
        found = assess(case, knowledge())
        ids = {item.id for item in case.evidence}
        assert set(found.proof) | set(found.cascade) | set(found.clears) <= ids
        assert found.proof
        assert not set(found.proof) & set(found.cascade)
