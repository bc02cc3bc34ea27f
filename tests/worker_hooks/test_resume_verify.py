"""The verification before the first step: what it names, and what becomes of a checkpoint that fails it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.worker_hooks.resume_stage import Saved, bits, objects, save_steps, update
from worker_hooks import Run
from worker_hooks.protocol import leases
from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.errors import VerificationFailed
from worker_hooks.training.resuming.verify import Check, demand, learning_rate_check, worst

pytestmark = pytest.mark.torch


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Saved:
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)
    return save_steps(tmp_path / "root")


# --- walking back once --------------------------------------------------------------------------------------------


def test_a_checkpoint_that_fails_is_set_aside_once(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt takes the one before; if that fails too, nothing more is given up: the cause is elsewhere."""
    monkeypatch.setenv("RELUME_SABOTAGE", "weights")
    for _ in range(3):
        with pytest.raises(
            VerificationFailed, match=r"parameters \(ranks \[0\]\) differ.*\[parameters: model/0\.weight\]"
        ):
            saved.resume()
    aside = {path.parent.name: json.loads(path.read_text()) for path in saved.run.glob("*/quarantine.json")}
    assert list(aside) == ["step-00000003.g1"]
    assert aside["step-00000003.g1"]["reason"].startswith("failed verification (parameters): ")
    monkeypatch.delenv("RELUME_SABOTAGE")
    assert saved.resume() == (2, saved.states[2])


def test_the_only_checkpoint_is_never_set_aside_for_a_failed_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)
    saved = save_steps(tmp_path / "root", steps=1)
    monkeypatch.setenv("RELUME_SABOTAGE", "weights")
    with pytest.raises(VerificationFailed):
        saved.resume()
    monkeypatch.delenv("RELUME_SABOTAGE")
    assert saved.resume()[0] == 1


def test_a_state_that_gives_no_number_twice_is_left_behind_once(saved: Saved) -> None:
    """R27: two attempts from step 3 see NaN at their first step; the third begins at step 2."""
    with Run(root=saved.root, checkpoint_every=0, **objects()) as run:
        run.step(loss=float("nan"))
        run.step(loss=1.0)
        (saved.run / "step-00000005.g2").mkdir()  # in the way of the save at the end
    for folder in saved.run.glob("step-0000000[45].g2"):
        (folder / "manifest.json").unlink(missing_ok=True)
        (folder / "rank-00000.json").unlink(missing_ok=True)
    with pytest.raises(VerificationFailed, match="no number again"), Run(root=saved.root, **objects()) as run:
        assert run.completed == 3
        run.step(loss=float("nan"))
        run.step(loss=1.0)
    assert saved.resume()[0] == 2


# --- what is named ------------------------------------------------------------------------------------------------


def epochs_of(root: Path, *, after_restore: Any = None, steps: int = 4) -> Run:
    """A loop over a tracked loader; `after_restore` is what a script does between `restore` and its first batch."""
    tracked = objects()
    data = TensorDataset(torch.zeros(64, 1))
    loader = DataLoader(data, 4, sampler=ResumableSampler(data))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(tracked["optimizer"], 0.9)
    with Run(root=root, checkpoint_every=2, total_steps=steps, asynchronous=False) as run:
        run.track(**tracked, scheduler=scheduler, loader=loader)
        run.restore()
        if after_restore is not None:
            after_restore(tracked)
        for _ in run.epochs(9):
            for _ in run.batches(loader):
                loss = update(tracked)
                scheduler.step()
                run.step(loss=loss)
    return run


def test_a_learning_rate_that_jumps_is_named_at_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """R10: the script builds its scheduler again after the restore, which sets the rate of step 0."""
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)
    epochs_of(tmp_path / "root")

    def rebuild(tracked: dict[str, Any]) -> None:
        tracked["optimizer"].param_groups[0]["lr"] = 0.1
        torch.optim.lr_scheduler.ExponentialLR(tracked["optimizer"], 0.9)

    with pytest.raises(VerificationFailed) as caught:
        epochs_of(tmp_path / "root", after_restore=rebuild, steps=8)
    assert "learning_rate" in caught.value.parts
    assert "LR_JUMP 0.06561 at the save, 0.1 now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("now", "outcome", "code"),
    [(0.0005, "PASS", None), (0.0005 * (1 + 1e-9), "DEGRADED", None), (0.000999, "FAIL", "LR_JUMP")],
)
def test_how_far_a_learning_rate_may_be_off(now: float, outcome: str, code: str | None) -> None:
    check = learning_rate_check([(0.0005).hex()], [now.hex()])
    assert (check.outcome, check.code) == (outcome, code)
    assert learning_rate_check([(0.1).hex()], []).code == "LR_JUMP"


class Four:
    """Four ranks of which three restored rank 0's random state."""

    def gather(self, mine: Any) -> list[Any]:
        return [[], mine, mine, mine]


def test_ranks_with_another_ranks_random_state_are_listed() -> None:
    """R16: comparing rank 0 alone would have found nothing."""
    check = Check("random_state", "FAIL", {"torch": "b"}, {"torch": "a"}, "RNG_MISMATCH", "torch")
    with pytest.raises(VerificationFailed, match=r"random_state \(ranks \[1, 2, 3\]\).*RNG_MISMATCH torch"):
        demand([check], Four(), 8)  # type: ignore[arg-type]


def test_the_whole_is_as_good_as_its_worst_check() -> None:
    def of(*outcomes: str) -> str:
        return worst([Check("x", outcome, None, None) for outcome in outcomes])

    assert (of("PASS", "PASS"), of("PASS", "DEGRADED"), of()) == ("PASS", "DEGRADED", "PASS")
    assert of("DEGRADED", "RESHARDED", "PASS") == "RESHARDED"
    assert of("RESHARDED", "FAIL") == "FAIL"


def test_weights_swapped_for_an_evaluation_are_not_what_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R14: the evaluation runs on averaged weights; a save that is due waits for the boundary of the step."""
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)
    tracked = objects()
    data = TensorDataset(torch.zeros(16, 1))
    loader = DataLoader(data, 4, sampler=ResumableSampler(data))
    raw: list[bytes] = []
    with Run(root=tmp_path / "root", checkpoint_every=1, total_steps=2, asynchronous=False) as run:
        run.track(**tracked, loader=loader)
        run.restore()
        for _ in run.epochs(1):
            for _ in run.batches(loader):
                run.step(loss=update(tracked))
                raw = bits(tracked)
                with run.phase("evaluation"), torch.no_grad():
                    kept = [parameter.clone() for parameter in tracked["model"].parameters()]
                    for parameter in tracked["model"].parameters():
                        parameter.fill_(7.0)
                    for parameter, before in zip(tracked["model"].parameters(), kept, strict=True):
                        parameter.copy_(before)
    again = objects()
    with Run(root=tmp_path / "root", checkpoint_every=0) as run:
        run.track(**again, loader=loader)
        assert run.restore() == 2
        assert bits(again) == raw


def test_the_checkpoint_is_held_until_it_is_verified(saved: Saved) -> None:
    """Nobody prunes it meanwhile; a script may take long from the restore to its first batch."""
    data = TensorDataset(torch.zeros(16, 1))
    loader = DataLoader(data, 4, sampler=ResumableSampler(data))
    with Run(root=saved.root, checkpoint_every=0) as run:
        run.track(**objects(), loader=loader)
        run.restore()
        assert leases.being_read(saved.run) == {"step-00000003.g1"}
        for _ in run.epochs(1):
            for _ in run.batches(loader):
                assert leases.being_read(saved.run) == set()
                break
            break
