"""What the lint finds ends the run unless it is waived by name; a waiver is told in checkpoints, log and controller."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.worker_hooks.conftest import World
from tests.worker_hooks.lint_stage import Average, data, nothing_left_over, sgd
from worker_hooks import Run
from worker_hooks.protocol.generations import accepted_folders, read_rank_file
from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.lint.findings import UNWAIVABLE

pytestmark = pytest.mark.torch
__all__ = ["nothing_left_over"]


def train(root: Path, *, scheduled: bool = True, **options: Any) -> Run:
    """Two updates with a scheduler that nobody tracks."""
    net = nn.Linear(2, 1)
    optimizer = sgd(net)
    if scheduled:
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with Run(model=net, optimizer=optimizer, root=root, **{"run_id": "tj-4f2a9c0b11de", **options}) as run:
        for _ in range(2):
            net(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            run.step()
    return run


def test_an_incomplete_state_ends_the_run_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as refused:
        train(tmp_path)
    said = str(refused.value)
    assert "[scheduler] optimizer: " in said and "track(scheduler=" in said and "Run(waive=['scheduler'])" in said


@pytest.mark.parametrize("options", [{"waive": ["scheduler"]}, {"strict": False}], ids=["waived", "not strict"])
def test_a_waiver_is_in_every_checkpoint_and_in_the_log(
    tmp_path: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, **options)
    (folder,) = accepted_folders(run.folder)
    assert read_rank_file(run.folder / folder, 0).run["waived"] == ["scheduler"]
    assert capsys.readouterr().err.count("waived: [scheduler] optimizer: ") == 1
    other = train(tmp_path, scheduled=False, run_id="tj-000000000002")
    (folder,) = accepted_folders(other.folder)
    assert read_rank_file(other.folder / folder, 0).run["waived"] == []


def test_only_what_there_is_can_be_waived(tmp_path: Path) -> None:
    for code in ("schedulers", *sorted(UNWAIVABLE)):
        with pytest.raises(CheckpointError, match="can be waived are"):
            Run(root=tmp_path, waive=[code])
    history = Average([object()])  # type: ignore[list-item]
    with pytest.raises(CheckpointError, match=r"\[value\] history") as refused:
        train(tmp_path, extra={"history": history}, strict=False, scheduled=False)
    assert "waive" not in str(refused.value)


def test_what_is_tracked_after_the_restore_is_never_loaded(tmp_path: Path) -> None:
    net = nn.Linear(2, 1)
    optimizer = sgd(net)
    with (
        pytest.raises(CheckpointError, match=r"\[late\] counts: tracked after"),
        Run(model=net, optimizer=optimizer, root=tmp_path) as run,
    ):
        run.track(counts=Average([]))
        run.step()


def test_a_tracked_loader_must_be_read_through_the_run(tmp_path: Path) -> None:
    net = nn.Linear(2, 1)
    optimizer = sgd(net)
    loader = DataLoader(data(), 4, sampler=ResumableSampler(data()))
    with (
        pytest.raises(CheckpointError, match=r"\[data_position\] loader: .*run.batches"),
        Run(model=net, optimizer=optimizer, loader=loader, root=tmp_path) as run,
    ):
        for _ in loader:
            run.step()


def test_the_controller_is_told_what_was_waived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    folder = world.new_run_dir("run-dir", 1)
    monkeypatch.setenv("RELUME_RUN_DIR", str(folder))
    train(tmp_path, waive=["scheduler"])
    records = world.events(folder, 0)
    assert [record["waived"] for record in records if record["kind"] == "run_facts"] == ["scheduler"]


def test_what_is_waived_at_the_first_save_is_told_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    folder = world.new_run_dir("run-dir", 1)
    monkeypatch.setenv("RELUME_RUN_DIR", str(folder))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    train(tmp_path, scheduled=False, waive=["scaler", "scheduler"])
    records = world.events(folder, 0)
    assert [record["waived"] for record in records if record["kind"] == "run_facts"] == ["", "scaler"]
