"""Several tracked loaders, each looked at before the first step that uses it; the place against the updates (R04)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.worker_hooks.share_folder import rewrite
from worker_hooks import Run
from worker_hooks.protocol.generations import accepted_folders
from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.data.accounting import Account
from worker_hooks.training.errors import VerificationFailed
from worker_hooks.training.files.digests import value_digest
from worker_hooks.training.resuming.resumption import Resumption

pytestmark = pytest.mark.torch
Checks = list[tuple[str, int, dict[str, Any]]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Checks:
    """(stage, step, checks by name) of every report."""
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)
    found: Checks = []
    monkeypatch.setattr(
        Resumption, "report", lambda self, stage, step, checks: found.append((stage, step, {c.name: c for c in checks}))
    )
    return found


def loaders(kinds: tuple[str, str]) -> list[DataLoader[Any]]:
    made = []
    for seed, kind in enumerate(kinds):
        data = TensorDataset(torch.arange(24.0).reshape(24, 1))
        if kind == "resumable":
            made.append(DataLoader(data, 4, sampler=ResumableSampler(data, seed=seed)))
        else:
            made.append(DataLoader(data, 4, shuffle=True))
    return made


def interleaved(root: Path, kinds: tuple[str, str], until: int, total: int = 10) -> list[list[float]]:
    """Two loaders at a time, and numbers drawn between; what each update saw."""
    torch.manual_seed(7)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    first, second = loaders(kinds)
    seen = []
    with Run(root=root, checkpoint_every=0, total_steps=until, asynchronous=False) as run:
        run.track(model=model, optimizer=optimizer, loader=[first, second])
        run.restore()
        for _ in run.epochs(9):
            for (one,), (other,) in zip(run.batches(first), run.batches(second), strict=False):
                loss = model(one + other + torch.rand(1)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                seen.append([*one.flatten().tolist(), *other.flatten().tolist(), float(loss.detach())])
                run.step()
    return seen


@pytest.mark.parametrize("kinds", [("resumable", "resumable"), ("resumable", "shuffle"), ("shuffle", "resumable")])
@pytest.mark.parametrize("stop", [3, 8])
def test_two_loaders_at_a_time_continue_to_the_bit_and_both_are_compared(
    tmp_path: Path, told: Checks, kinds: tuple[str, str], stop: int
) -> None:
    whole = interleaved(tmp_path / "whole", kinds, 10)
    before = interleaved(tmp_path / "again", kinds, stop)
    assert before + interleaved(tmp_path / "again", kinds, 10) == whole
    reports = [(step, checks) for stage, step, checks in told if stage == "before_first_step"]
    assert [step for step, _ in reports] == [stop, stop]
    last = reports[-1][1]
    expected = "PASS" if kinds[1] == "resumable" else "DEGRADED"
    assert last["data_position:loader.1"].outcome == expected
    assert last["data_ledger:loader.1"].outcome == "PASS" and "parameters" in last, "the newest report holds them all"


def test_a_second_loader_that_starts_elsewhere_is_caught_before_its_first_batch(tmp_path: Path, told: Checks) -> None:
    interleaved(tmp_path, ("resumable", "resumable"), 3)

    def fails(root: Path) -> None:
        first, second = loaders(("resumable", "resumable"))
        model = torch.nn.Linear(1, 1)
        with Run(root=root, checkpoint_every=0) as run:
            run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.001), loader=[first, second])
            run.restore()
            second.sampler.seed = 5  # type: ignore[attr-defined]
            for _ in run.epochs(1):
                for _ in run.batches(first):
                    for _ in run.batches(second):
                        pytest.fail("a batch of another order was handed out")

    with pytest.raises(VerificationFailed, match=r"opens loader\.1 elsewhere than at the save of step 3"):
        fails(tmp_path)
    assert told[-1][2]["data_position:loader.1"].outcome == "FAIL"


def test_a_loader_that_was_not_used_in_its_epoch_begins_the_next_one_anew(tmp_path: Path, told: Checks) -> None:
    """Validation after every second epoch: the place of epoch 0 is none in epoch 1."""

    def train(until: int) -> list[list[float]]:
        torch.manual_seed(7)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        first, second = loaders(("resumable", "shuffle"))
        validated = []
        with Run(root=tmp_path / str(until > 0), checkpoint_every=0, total_steps=until or 20) as run:
            run.track(model=model, optimizer=optimizer, loader=[first, second])
            run.restore()
            for epoch in run.epochs(3):
                for (one,) in run.batches(first):
                    model(one).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    run.step()
                if epoch % 2 and not run.over:
                    validated.append([float(value) for (batch,) in run.batches(second) for value in batch])
        return validated

    whole = train(0)
    assert train(3) == [] and train(20) == whole and len(whole[0]) == 24


def test_what_was_loaded_and_not_used_is_saved_again_as_it_was(tmp_path: Path, told: Checks) -> None:
    interleaved(tmp_path, ("resumable", "shuffle"), 3)
    first, second = loaders(("resumable", "shuffle"))
    model = torch.nn.Linear(1, 1)
    with Run(root=tmp_path, checkpoint_every=0, total_steps=4) as run:
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.001), loader=[first, second])
        run.restore()
        for _ in run.batches(first):
            run.step()

    def place(step: int) -> Any:
        (name,) = (n for n in accepted_folders(run.folder) if n.startswith(f"step-{step:08}"))
        return json.loads((run.folder / name / "rank-00000.json").read_bytes())["data"]["loaders"]["loader.1"]

    assert place(4) == place(3) and place(3)["batches"] == 3


# --- R04 ------------------------------------------------------------------------------------------------------------


def one_loader(
    root: Path, until: int, *, accumulation: int = 1, leave_at: int | None = None, flush: bool = True
) -> Any:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    data = TensorDataset(torch.zeros(26, 1))
    loader = DataLoader(data, 4, sampler=ResumableSampler(data, seed=1))  # 7 batches, the last one is short
    with Run(root=root, checkpoint_every=0, total_steps=until, accumulation=accumulation, strict=False) as run:
        run.track(model=model, optimizer=optimizer, loader=loader)
        run.restore()
        for _ in run.epochs(9):
            for taken, (one,) in enumerate(run.batches(loader), start=1):
                model(one).square().mean().backward()
                if taken % accumulation == 0 or (flush and taken == 7):
                    optimizer.step()
                    run.step()
                if taken == leave_at:
                    break
    return run


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulation": 2},
        {"accumulation": 2, "flush": False},
        {"accumulation": 3},
        {"leave_at": 5},
    ],
)
@pytest.mark.parametrize("stops", [(3, 5), (9, 14)])
def test_the_place_fits_the_updates_after_every_resume(
    tmp_path: Path, told: Checks, options: dict[str, Any], stops: tuple[int, int]
) -> None:
    for until in (*stops, stops[1] + 1):
        one_loader(tmp_path, until, **options)
    found = [checks.get("consumed") for _, _, checks in told]
    # This script begins to count anew after a restart within an epoch: with accumulation that proves nothing.
    outcomes = {check.outcome if check is not None else "" for check in found}
    assert outcomes == {"PASS"} or (options.get("accumulation") and outcomes <= {"PASS", ""}), found


def test_a_place_that_counts_from_the_last_restart_is_told(tmp_path: Path, told: Checks) -> None:
    """R04: 4 batches, then 2 more, and the place says 2."""
    one_loader(tmp_path, 4)
    run = one_loader(tmp_path, 6)

    def forget(data: dict[str, Any]) -> None:
        for place in (data["data"], data["data"]["loaders"]["loader"]):
            place.update(batches=2, consumed=8)
        place["ledger"]["spans"] = [{"first": 0, "last": 8, "ranks": 1}]
        order = ResumableSampler(range(26), seed=1, num_replicas=1, rank=0)
        place["next_ids_digest"] = value_digest(order.ids_at(0, 8, 4), "sha256")

    rewrite(run.folder / next(iter(accepted_folders(run.folder))), 0, lambda index: None, forget)
    one_loader(tmp_path, 7)
    check = told[-1][2]["consumed"]
    assert (check.outcome, check.code) == ("DEGRADED", "CONSUMED_OFF")
    assert check.why == "step 6 x global batch 4 = 24 samples, the position says 8"


@pytest.mark.parametrize(
    ("earlier", "batches", "turns", "step", "accumulation", "sound"),
    [
        (0, 40, 1, 40, 1, True),
        (0, 10, 3, 40, 1, False),
        (200, 5, 3, 205, 1, True),
        (0, 5, 3, 205, 1, False),
        (200, 5, 3, 204, 1, False),
        (5, 4, 2, 9, 1, True),
        (14, 4, 2, 10, 2, True),
        (14, 4, 2, 7, 2, True),
        (14, 4, 2, 5, 2, False),
        (0, 3, 1, 1, 2, True),
    ],
)
def test_steps_epochs_and_accumulation_add_up(
    earlier: int, batches: int, turns: int, step: int, accumulation: int, sound: bool
) -> None:
    account = Account()
    account.earlier, account.turns = earlier, turns
    found = account.check(step, batches, together=8, accumulation=accumulation, unit="samples")
    assert found is not None and (found[1] == "PASS") is sound
