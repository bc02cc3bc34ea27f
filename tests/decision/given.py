"""The attribution cases that were given, and the whole chain on one input: lines -> signs -> case -> assessment."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from controller.bundles.read import read_case
from controller.decision.assess import assess
from controller.decision.assessment import Assessment
from controller.decision.evidence import Case
from controller.decision.meanings import Knowledge
from controller.knowledge.load import load

PATH = Path(__file__).with_name("cases.jsonl")


@cache
def knowledge() -> Knowledge:
    return load()


@cache
def given() -> dict[str, Mapping[str, Any]]:
    return {case["id"]: case for case in map(json.loads, PATH.read_text().splitlines())}


def input_of(name: str) -> dict[str, Any]:
    """A copy that a test may change."""
    copied: dict[str, Any] = json.loads(json.dumps(given()[name]["input"]))
    return copied


def cases_of(data: Mapping[str, Any]) -> dict[str, Case]:
    return {scene.name: scene.case for scene in read_case(data)}


def case_of(data: Mapping[str, Any]) -> Case:
    (case,) = cases_of(data).values()
    return case


def judged(data: Mapping[str, Any]) -> Assessment:
    return assess(case_of(data), knowledge())
