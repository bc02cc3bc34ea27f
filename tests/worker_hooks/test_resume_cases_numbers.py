"""Resume cases of public reports about the numbers in a state, with relatives of each: R12 (the loss scale is not
restored), R16 (one rank's random state for all), R27 (NaN in the newest one)."""

import json
import math
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from tests.worker_hooks.conftest import ForkServer, World
from tests.worker_hooks.resume_stage import bits, objects, save_steps
from tests.worker_hooks.share_folder import rewrite
from tests.worker_hooks.state_stage import Objects, attempt, told_checks
from worker_hooks import Run
from worker_hooks.protocol.generations import accepted_folders, read_rank_file
from worker_hooks.training.errors import CheckpointMismatch, VerificationFailed
from worker_hooks.training.resuming.replay import Replay
from worker_hooks.training.resuming.verify import Check, random_check
from worker_hooks.training.state import random_state

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Check]:
    return told_checks(monkeypatch)


# --- R12 ----------------------------------------------------------------------------------------------------------


def scaled(**options: Any) -> Objects:
    return {**objects(), "scaler": torch.amp.GradScaler("cpu", **options)}


@pytest.mark.parametrize("used", [False, True])
def test_a_loss_scale_and_its_growth_go_on(tmp_path: Path, told: dict[str, Check], used: bool) -> None:
    """R12: also into a scaler that has scaled something before the restore."""
    first, again = scaled(init_scale=512.0, growth_interval=2), scaled()
    attempt(tmp_path, first, 3)
    if used:
        again["scaler"].scale(torch.ones(1))
    attempt(tmp_path, again, 0)
    assert again["scaler"].state_dict() == first["scaler"].state_dict()
    assert (again["scaler"].get_scale(), told["scaler"].outcome) == (1024.0, "PASS")


@pytest.mark.parametrize(
    ("saved", "now", "said"),
    [
        ({"init_scale": 512.0}, {"enabled": False}, r"scaler: .*scale: 512.0 at the save, nothing now"),
        ({"enabled": False}, {}, "scaler: its load_state_dict does not take what was stored"),
        ({"init_scale": 512.0}, None, r"only in the checkpoint: \['scaler'\]"),
        ({"enabled": False}, {"enabled": False}, None),
    ],
    ids=["switched off", "switched on", "gone", "off as before"],
)
def test_a_scaler_that_is_another_one(tmp_path: Path, saved: Objects, now: Objects | None, said: str | None) -> None:
    """R12: named before the first update."""
    attempt(tmp_path, scaled(**saved), 1)
    again = objects() if now is None else scaled(**now)
    if said is None:
        attempt(tmp_path, again, 0)
        return
    with pytest.raises((CheckpointMismatch, VerificationFailed), match=said):
        attempt(tmp_path, again, 0)


# --- R16 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["python", "numpy", "torch"])
def test_each_generator_is_compared_by_itself(kind: str) -> None:
    """R16: one that nobody put back is named; one that was not there at the save is not asked for."""
    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
    saved = random_state.capture()
    {"python": random.random, "numpy": numpy.random.rand, "torch": lambda: torch.rand(1)}[kind]()
    now = random_state.digests(random_state.capture())

    def outcome(state: Objects) -> Check:
        own = SimpleNamespace(random={**random_state.digests(state), "state": state})
        return random_check(SimpleNamespace(own=own, manifest=SimpleNamespace(world_size=1)), now, 1)  # type: ignore[arg-type]

    check = outcome(saved)
    assert (check.outcome, check.code, check.why) == ("FAIL", "RNG_MISMATCH", kind)
    assert outcome({key: value for key, value in saved.items() if key != kind}).outcome == "PASS"
    random_state.restore(saved)
    assert random_state.digests(random_state.capture()) == random_state.digests(saved)


@pytest.fixture(scope="module")
def four(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four ranks, checkpoints at steps 2 and 4."""
    world = World(fork_server, tmp_path_factory.mktemp("four"))
    world.finish(4, total=4, every=2)
    return world


@pytest.fixture
def again(four: World, world: World) -> World:
    shutil.copytree(four.root, world.root)
    return world


def test_one_ranks_random_state_on_four_ranks(again: World) -> None:
    """R16: every rank restores rank 0's; three of four are wrong, and are listed."""
    folder = again.run / "step-00000004.g1"
    states = [read_rank_file(folder, rank).random for rank in range(4)]
    assert len({state["torch"] for state in states}) == 4
    for rank in (1, 2, 3):
        rewrite(folder, rank, lambda index: None, lambda file: file["random"].update(state=states[0]["state"]))
    started = again.tiny(4, total=6)
    assert started.wait() == [77] * 4, started.text()
    assert "random_state (ranks [1, 2, 3])" in started.text() and "RNG_MISMATCH" in started.text()


def test_a_ranks_file_over_another_ones(again: World) -> None:
    """R16: it says whose it is, so it is damage of that checkpoint, and the one before is taken."""
    folder = again.run / "step-00000004.g1"
    shutil.copy(folder / "rank-00001.json", folder / "rank-00002.json")
    again.finish(4, total=5)
    assert "rank-00002.json" in json.loads((folder / "quarantine.json").read_text())["reason"]
    (said,) = [line for line in (again.folder / "attempt1.rank0.log").read_text().splitlines() if "goes on" in line]
    assert said == "relume: goes on after step 2, step-00000002.g1: PASS"


# --- R27 ----------------------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2])
@pytest.mark.parametrize("value", [NAN, 1.0])
def test_no_number_in_a_parameter_of_any_type_is_never_committed(
    tmp_path: Path, kind: torch.dtype, value: float
) -> None:
    """R27: the finite check comes before the commit."""
    tracked = objects()
    tracked["model"].odd = nn.Parameter(torch.zeros(8).to(kind))
    tracked["optimizer"] = torch.optim.AdamW(tracked["model"][:2].parameters(), lr=0.1)
    run = attempt(tmp_path, tracked, 1, after=lambda step: tracked["model"].odd.data.copy_(torch.full((8,), value)))
    assert accepted_folders(run.folder) == (["step-00000001.g1"] if value == 1.0 else [])


def test_a_mask_of_minus_infinity_is_a_state_as_any_other(tmp_path: Path) -> None:
    """R27: a causal mask in a buffer blocks no save."""

    def made() -> Objects:
        tracked = objects()
        tracked["model"][0].register_buffer("mask", torch.full((4, 4), -INF).triu(1))
        return tracked

    first, again = made(), made()
    run = attempt(tmp_path, first, 1)
    assert accepted_folders(run.folder) == ["step-00000001.g1"]
    attempt(tmp_path, again, 0)
    assert bits(again) == bits(first)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("recorded", "step", "loss", "outcome"),
    [
        ({11: NAN}, 11, NAN, "FAIL"),
        ({11: INF}, 11, NAN, "FAIL"),
        ({14: NAN}, 14, NAN, "FAIL"),  # a script that tells every fourth loss
        ({11: NAN}, 11, 2.0, "DEGRADED"),  # what spoilt the attempt before is over: a fault of a GPU
        ({11: 2.0}, 11, NAN, "FAIL"),
        ({11: 2.0, 12: NAN}, 12, NAN, "PASS"),  # the data's, perhaps
    ],
)
def test_the_first_loss_after_a_checkpoint(
    exact: bool, recorded: dict[int, float], step: int, loss: float, outcome: str
) -> None:
    """R27: no number twice from one checkpoint is its state's; once is no reason to give up a number."""
    losses = {at: (2.0).hex() for at in range(1, 11)} | {at: value.hex() for at, value in recorded.items()}
    check = Replay(losses, 10, exact=exact).check(step, loss)
    assert check is not None and check.outcome == outcome
    assert (check.code == "NOT_FINITE") == (outcome == "FAIL" and not math.isfinite(recorded[step]))


def test_it_is_gone_back_once_and_then_nothing_more_is_given_up(tmp_path: Path) -> None:
    """R27: no number twice from step 3, then none from step 2 either: a person is asked (tests/decision), with every
    older checkpoint still there."""
    saved = save_steps(tmp_path)

    def attempt_of(step: int, ends: type[BaseException]) -> None:
        with pytest.raises(ends), Run(root=tmp_path, checkpoint_every=0, **objects()) as run:
            assert run.completed == step
            run.step(loss=NAN)
            run.boundary()
            run.step(loss=NAN)
            raise KeyError  # the script's own way to end

    attempt_of(3, KeyError)
    for step in (3, 2, 2):
        attempt_of(step, VerificationFailed)
    assert [path.parent.name for path in saved.run.glob("*/quarantine.json")] == ["step-00000003.g1"]
    assert accepted_folders(saved.run) == ["step-00000002.g1", "step-00000001.g1"]
