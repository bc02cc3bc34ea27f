"""Recorded runs of others: a straggler, an imbalance that is none, a loss spike that healed."""

import csv
import gzip
from collections.abc import Iterator

import pytest

from controller.decision.losses import LossState, fold
from controller.decision.stragglers import Timing, compare
from tests.shared_data import shared_data
from worker_hooks.signs.log import JOB, LogReader

pytestmark = pytest.mark.data


def recorded(name: str) -> Iterator[dict[str, str]]:
    path = shared_data() / "straggler" / f"trace-{name}.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def timings(name: str) -> list[Timing]:
    return [
        Timing(
            worker=int(row["rank"]),
            role=f"stage {row['stage']}",
            operation=row["optype"],
            step=int(row["step"]),
            seconds=float(row["duration"]),
            chunk=row["mc"],
        )
        for row in recorded(name)
    ]


def test_one_worker_explains_the_recorded_slowdown() -> None:
    ours = {int(row["rank"]) for row in recorded("AR") if (row["dp_rank"], row["stage"]) == ("0", "0")}
    found = compare(timings("AR"))
    assert set(found.workers) == ours
    assert all(s.role == "stage 0" and s.slowdown > 2.0 and s.share > 0.9 for s in found.stragglers)


def test_a_recorded_imbalance_of_stages_blames_nobody() -> None:
    found = compare(timings("ST"))
    assert found.stragglers == () and found.imbalance > 1.3


def test_a_recorded_loss_spike_that_healed() -> None:
    """Seen at its step, healed a few lines later, and no number was lost: nothing to go back for."""
    reader = LogReader(JOB, whole=True)
    signs = reader.feed((shared_data() / "bloom-loss-spike.log").read_bytes()) + reader.close()
    points = [(int(s.attrs["step"]), float(s.attrs["loss"])) for s in signs if "loss" in s.attrs]
    assert len(points) == 13
    state = fold(LossState(), points)
    (spike,) = state.spikes
    assert (spike.step, spike.value) == (31219, 5.098124)
    assert spike.healed and state.not_finite == 0
