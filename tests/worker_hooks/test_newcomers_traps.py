"""What a script does that its writer did not mean, in one process: refused or told, with what to do."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from worker_hooks import Run
from worker_hooks.protocol import generations, minting
from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.errors import CheckpointError, CheckpointMismatch, VerificationFailed
from worker_hooks.training.files import writing

pytestmark = pytest.mark.torch

RUN_ID = "tj-4f2a9c0b11de"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A shell without a launcher; the generators of this process are as they were afterwards."""
    for name in ("WORLD_SIZE", "RANK", "RELUME_RUN_ID", "RELUME_CHECKPOINT_ROOT"):
        monkeypatch.delenv(name, raising=False)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def parts(width: int = 8) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
    data = TensorDataset(torch.randn(16, 4), torch.randint(0, 2, (16,)))
    loader = DataLoader(data, 4, sampler=ResumableSampler(data, seed=1))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "loader": loader}


def update(tracked: dict[str, Any], batch: Any) -> torch.Tensor:
    points, classes = batch
    loss = nn.functional.cross_entropy(tracked["model"](points), classes)
    tracked["optimizer"].zero_grad()
    loss.backward()
    tracked["optimizer"].step()
    return loss


def train(root: Path, epochs: int = 1, tracked: dict[str, Any] | None = None, **options: Any) -> int:
    tracked = tracked or parts()
    with Run(root=root, run_id=RUN_ID, **tracked, **options) as run:
        for _ in run.epochs(epochs):
            for batch in run.batches(tracked["loader"]):
                run.step(loss=update(tracked, batch))
    return run.completed


def test_several_ranks_without_a_process_group_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would be rank 0 of its own attempt, and end the other one as superseded."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CheckpointError, match=r"WORLD_SIZE=2 .* after torch.distributed.init_process_group"):
        Run(root=tmp_path, run_id=RUN_ID)
    assert not (tmp_path / RUN_ID).exists()


def test_a_run_that_tracks_nothing_says_so_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tracked = parts()
    with Run(root=tmp_path, run_id=RUN_ID) as run:
        run.restore()
        for batch in run.batches(tracked["loader"]):
            run.step(loss=update(tracked, batch))
    assert capfd.readouterr().err.count("nothing is tracked, so nothing is saved and nothing comes back") == 1


def test_an_epoch_without_a_step_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tracked = parts()
    with Run(root=tmp_path, run_id=RUN_ID, **tracked) as run:
        for _ in run.epochs(2):
            for batch in run.batches(tracked["loader"]):
                update(tracked, batch)
    assert capfd.readouterr().err.count("a whole epoch of batches went by without run.step()") == 1


def test_epochs_that_nobody_counts_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tracked = parts()
    with Run(root=tmp_path, run_id=RUN_ID, **tracked) as run:
        for _ in range(3):
            for batch in run.batches(tracked["loader"]):
                run.step(loss=update(tracked, batch))
    assert capfd.readouterr().err.count("nobody counts the epochs") == 1


@pytest.mark.parametrize("options", [{}, {"total_steps": 6}])
def test_a_loop_as_it_should_be_is_told_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    assert train(tmp_path, epochs=2, **options) == options.get("total_steps", 8)
    assert "note" not in capfd.readouterr().err


def test_another_model_is_told_from_damage_and_says_what_to_do(tmp_path: Path) -> None:
    train(tmp_path)
    other = parts(width=16)
    with pytest.raises(CheckpointMismatch) as caught:
        train(tmp_path, tracked=other)
    said = str(caught.value)
    assert "step-00000004.g1 was saved from other objects than are tracked now: " in said
    assert "model/0.weight: stored as torch.float32[8, 4], now torch.float32[16, 4]" in said
    assert said.endswith("another model is another run, with a root of its own")


def test_another_config_is_told_and_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, config={"width": 8})
    assert train(tmp_path, epochs=2, config={"width": 9}) == 8
    assert "step-00000004.g1: DEGRADED (config)" in capfd.readouterr().err
    assert train(tmp_path, epochs=3, config={"width": 9}) == 12
    assert "step-00000008.g2: PASS" in capfd.readouterr().err


def test_a_config_that_is_no_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="config: only what JSON holds"):
        Run(root=tmp_path, run_id=RUN_ID, config={"model": object()})


def test_a_token_that_is_nowhere_is_not_called_superseded(tmp_path: Path) -> None:
    """A root that differs by rank: only rank 0 minted in its own."""
    minting.mint(tmp_path / "one" / RUN_ID, node="gpu1", world_size=2, now=1.0)
    with pytest.raises(generations.NotNewest, match="another root on this rank"):
        generations.check_token(tmp_path / "other" / RUN_ID, 1)
    with pytest.raises(generations.NotNewest, match="generation 2 was superseded by generation 1"):
        generations.check_token(tmp_path / "one" / RUN_ID, 2)


def test_a_save_that_fails_is_in_the_log_while_training_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end it would be too late: a run that is killed before has saved nothing, and nobody knew."""

    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing, "write", full)
    with pytest.raises(CheckpointError, match="No space left"):
        train(tmp_path, epochs=2, checkpoint_every=4, asynchronous=False)
    said = capfd.readouterr().err
    assert "relume: step-00000004.g1 failed: saving step 4: [Errno 28] No space left on device: " in said
    assert "step-00000004.g1/rank-00000.d/tensors.bin" in said


def test_a_checkpoint_that_is_set_aside_is_in_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tmp_path)
    train(tmp_path, epochs=2)
    (tmp_path / RUN_ID / "step-00000008.g2" / "rank-00000.json").write_text("{}")
    train(tmp_path, epochs=3)
    said = capfd.readouterr().err
    assert "relume: step-00000008.g2 quarantined: rank-00000.json does not match its digest\n" in said
    assert "relume: goes on after step 4, step-00000004.g1" in said


@pytest.mark.parametrize("tracked_as", [None, "ema", "its module"])
def test_an_average_that_is_in_use_is_tracked_or_missed(tmp_path: Path, tracked_as: str | None) -> None:
    """Nothing of a resume would show it: the run goes on to the bit, and its average begins anew."""
    tracked = parts()
    average = AveragedModel(tracked["model"], multi_avg_fn=get_ema_multi_avg_fn(0.9))
    if tracked_as is not None:
        tracked["ema"] = average if tracked_as == "ema" else average.module

    def loop() -> None:
        with Run(root=tmp_path, run_id=RUN_ID, **tracked) as run:
            for batch in run.batches(tracked["loader"]):
                loss = update(tracked, batch)
                average.update_parameters(tracked["model"])
                run.step(loss=loss)

    if tracked_as is None:
        with pytest.raises(CheckpointError, match=r"\[ema\] ema: an AveragedModel .* track\(ema=…\)"):
            loop()
    else:
        loop()


def test_an_exception_and_an_interrupt_leave_the_last_checkpoint_and_no_new_one(tmp_path: Path) -> None:
    for error in (ValueError, KeyboardInterrupt):
        tracked = parts()
        with pytest.raises(error), Run(root=tmp_path, run_id=RUN_ID, checkpoint_every=2, **tracked) as run:
            for batch in run.batches(tracked["loader"]):
                run.step(loss=update(tracked, batch))
                if run.completed == 3:
                    raise error
        assert [folder.partition(".")[0] for folder in generations.accepted_folders(tmp_path / RUN_ID)] == [
            "step-00000002"
        ]


def test_another_optimizer_of_the_same_parameters_is_no_resume(tmp_path: Path) -> None:
    train(tmp_path)
    tracked = parts()
    tracked["optimizer"] = torch.optim.SGD(tracked["model"].parameters(), lr=0.1)
    with pytest.raises((CheckpointMismatch, VerificationFailed), match="optimizer"):
        train(tmp_path, epochs=2, tracked=tracked)
