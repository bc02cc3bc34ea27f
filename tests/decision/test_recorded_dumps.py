"""The recorded dumps of two real hangs: both faulty ranks are named, no healthy one is."""

from random import Random

import pytest

from controller.decision.assess.collectives import behind
from controller.decision.evidence import JOB, Evidence
from tests.shared_data import shared_data
from worker_hooks.signs.flight_recorder import read_dump

pytestmark = pytest.mark.data

CASES = [("gpu_error_1st", {12, 14}), ("lock_gil_1st", {9, 14})]


def evidence(case):
    folder = shared_data() / "flight-recorder" / case
    signs = [sign for rank in range(16) for sign in read_dump((folder / f"_dump_{rank}").read_bytes(), rank)]
    return [
        Evidence(f"e{n}", s.code, s.layer, s.source, JOB, s.raw, s.at, s.node, s.rank, s.attrs)
        for n, s in enumerate(signs)
    ]


@pytest.mark.parametrize(("case", "faulty"), CASES)
def test_both_faulty_ranks_and_no_healthy_one(case, faulty):
    pieces = evidence(case)
    assert {suspect.rank for suspect in behind(pieces)} == faulty
    Random(1).shuffle(pieces)
    assert {suspect.rank for suspect in behind(pieces)} == faulty


@pytest.mark.parametrize(("case", "faulty"), CASES)
@pytest.mark.parametrize("absent", range(16))
def test_one_dump_missing_never_makes_a_healthy_rank_a_suspect(case, faulty, absent):
    named = {suspect.rank for suspect in behind(item for item in evidence(case) if item.rank != absent)}
    assert faulty - {absent} <= named <= faulty
