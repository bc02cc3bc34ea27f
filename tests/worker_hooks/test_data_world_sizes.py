"""4 ranks, then 2, then 3, within one epoch: equal parameters after each load, every sample exactly once."""

import json
from collections import Counter
from typing import Any

import pytest

from tests.worker_hooks.conftest import HERE, World
from worker_hooks.protocol import generations

pytestmark = pytest.mark.torch

PLAN = ((4, 3), (2, 6), (3, 4))  # ranks, batch of one rank: 12 samples a step


def attempt(world: World, number: int, samples: int, *, last_step: int | None, killed: bool) -> list[list[Any]]:
    """What each rank traced, line by line."""
    ranks, batch = PLAN[number]
    trace = world.folder / f"trace{number}"
    options = {
        "root": str(world.root),
        "trace": str(trace),
        "samples": samples,
        "batch": batch,
        "every": 2,
        "total": None if killed else last_step,
        "die": {"rank": ranks - 1, "step": last_step} if killed else None,
    }
    started = world.start(HERE / "programs" / "samples.py", [json.dumps(options)], ranks)
    statuses = started.wait()
    assert all(statuses) if killed else statuses == [0] * ranks, started.text()
    files = [world.folder / f"trace{number}.{rank}.jsonl" for rank in range(ranks)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize(("samples", "left_out"), [(99, 0), (100, 1)])
def test_every_sample_of_the_epoch_exactly_once_on_4_then_2_then_3_ranks(
    world: World, samples: int, left_out: int, killed: bool
) -> None:
    traces = [
        attempt(world, 0, samples, last_step=3, killed=killed),
        attempt(world, 1, samples, last_step=6, killed=killed),
        attempt(world, 2, samples, last_step=None, killed=False),
    ]
    starts = [trace[0][0]["step"] for trace in traces]
    assert starts[0] == 0 < starts[1] < starts[2], "each attempt goes on from the last one"
    for trace in traces:
        assert len({lines[0]["parameters"] for lines in trace}) == 1
    # Steps beyond the checkpoint that the next attempt loaded are in no parameters.
    kept = [
        index
        for trace, end in zip(traces, [*starts[1:], 10**9], strict=True)
        for lines in trace
        for line in lines[1:]
        if line["step"] <= end
        for index in line["ids"]
    ]
    assert max(Counter(kept).values()) == 1, "no sample twice"
    assert len(kept) == samples - left_out and set(kept) <= set(range(samples))

    (newest, *_) = generations.accepted_folders(world.run)
    ledgers = [generations.read_rank_file(world.run / newest, rank).data["ledger"] for rank in range(3)]
    assert ledgers[0] == ledgers[1] == ledgers[2]
    assert [(span["first"], span["ranks"]) for span in ledgers[0]["spans"]] == [
        (12 * step, ranks) for step, (ranks, _) in zip(starts, PLAN, strict=True)
    ]
    assert ledgers[0]["totals"] == dict.fromkeys(ledgers[0]["totals"], 0) | {"left_out": ledger_left_out(ledgers[0])}
    assert ledgers[0]["spans"][-1]["last"] == samples - left_out


def ledger_left_out(ledger: dict[str, Any]) -> int:
    """The last checkpoint is taken before the loader says that it has no more, so its ledger may not name it yet."""
    return sum(entry["count"] for entry in ledger["entries"] if entry["kind"] == "left_out")


def test_what_an_epoch_left_out_is_told(world: World) -> None:
    """81 samples by 2 ranks, 4 at a time each: one is left over in each epoch; only the first ends."""
    run_dir = world.new_run_dir("only", 2)
    world.finish(2, samples=81, total=12, env={"RELUME_RUN_DIR": str(run_dir)})
    told = [event for event in world.events(run_dir, 0) if event["kind"] == "run_facts" and "data_unit" in event]
    assert [event["data_left_out"] for event in told] == [0, 1, 1], "at the start of each epoch, and at the end"
    assert {(event["data_unit"], event["data_repeated"], event["data_skipped"]) for event in told} == {
        ("samples", 0, 0)
    }
