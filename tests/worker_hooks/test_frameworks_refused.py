"""What the callbacks cannot resume exactly is refused before training, with what to do; and what the agent is told."""

import importlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from worker_hooks import Run
from worker_hooks.integrations import requirements
from worker_hooks.training.errors import CheckpointError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

with warnings.catch_warnings():  # theirs, at import
    warnings.simplefilter("ignore")
    from lightning.pytorch import LightningModule, Trainer
    from transformers import Trainer as HuggingFaceTrainer
    from transformers import TrainingArguments

    from worker_hooks.integrations import huggingface, lightning


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (x,) = batch[0] if isinstance(batch, list) and isinstance(batch[0], list) else batch
        return self.net(x).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Nothing to see."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        while True:
            yield (torch.zeros(4),)


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.zeros(8, 4)), 2)


@pytest.mark.parametrize(
    ("options", "fit", "said"),
    [
        ({"reload_dataloaders_every_n_epochs": 1}, {}, "reload_dataloaders_every_n_epochs"),
        ({}, {"train_dataloaders": [loader(), loader()]}, "follows one train loader"),
        ({}, {"train_dataloaders": DataLoader(Endless(), 2)}, "has no length"),
    ],
)
def test_lightning(tmp_path: Path, options: dict[str, Any], fit: dict[str, Any], said: str) -> None:
    trainer = lightning_trainer(tmp_path, **options)
    with pytest.raises(CheckpointError, match=said):
        trainer.fit(Module(), **{"train_dataloaders": loader(), **fit})


def lightning_trainer(tmp_path: Path, **options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet["enable_checkpointing"] = False
    callback = lightning.RelumeCallback(root=tmp_path)
    return Trainer(accelerator="cpu", max_epochs=1, callbacks=[callback], **quiet, **options)


def test_lightning_its_own_resume(tmp_path: Path) -> None:
    plain = Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False, default_root_dir=tmp_path)
    plain.fit(Module(), loader())
    (path,) = (tmp_path / "checkpoints").glob("*.ckpt")
    with pytest.raises(CheckpointError, match="take ckpt_path out"):
        lightning_trainer(tmp_path).fit(Module(), loader(), ckpt_path=path)


def test_lightning_a_second_fit(tmp_path: Path) -> None:
    trainer = lightning_trainer(tmp_path)
    trainer.fit(Module(), loader())
    with pytest.raises(CheckpointError, match="one callback follows one"):
        trainer.fit(Module(), loader())


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.net(x).square().mean()}


def hugging_face_trainer(tmp_path: Path, **options: Any) -> HuggingFaceTrainer:
    args = TrainingArguments(
        output_dir=str(tmp_path / "hf"), use_cpu=True, num_train_epochs=1, save_strategy="no", report_to=[], **options
    )
    data = [{"x": torch.zeros(4)}] * 8
    return HuggingFaceTrainer(Model(), args, train_dataset=data, eval_dataset=data)


def test_transformers_its_own_resume(tmp_path: Path) -> None:
    trainer = hugging_face_trainer(tmp_path)
    huggingface.RelumeCallback(root=tmp_path).attach(trainer)
    with pytest.raises(CheckpointError, match="take resume_from_checkpoint out"):
        trainer.train(resume_from_checkpoint=True)


def test_transformers_a_batch_size_that_is_searched_for(tmp_path: Path) -> None:
    trainer = hugging_face_trainer(tmp_path, auto_find_batch_size=True)
    huggingface.RelumeCallback(root=tmp_path).attach(trainer)
    with pytest.raises(CheckpointError, match="auto_find_batch_size"):
        trainer.train()


def test_transformers_without_attach(tmp_path: Path) -> None:
    trainer = hugging_face_trainer(tmp_path)
    trainer.add_callback(huggingface.RelumeCallback(root=tmp_path))
    with pytest.raises(CheckpointError, match=r"call attach\(trainer\)"):
        trainer.train()


@pytest.mark.parametrize("framework", ["lightning", "huggingface"])
def test_validation_within_training_is_a_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str) -> None:
    phases = []
    phase = Run.phase

    def noted(self: Run, name: str) -> Any:
        phases.append((name, self.completed))
        return phase(self, name)

    monkeypatch.setattr(Run, "phase", noted)
    if framework == "lightning":
        lightning_trainer(tmp_path).fit(Module(), loader(), loader())
        assert phases == [("evaluation", 4)]
        return
    trainer = hugging_face_trainer(tmp_path, eval_strategy="epoch", per_device_train_batch_size=2)
    huggingface.RelumeCallback(root=tmp_path).attach(trainer)
    trainer.train()
    trainer.evaluate()
    assert phases == [("evaluation", 4)]


def test_transformers_an_error_in_training_ends_the_run(tmp_path: Path) -> None:
    trainer = hugging_face_trainer(tmp_path)
    callback = huggingface.RelumeCallback(root=tmp_path, asynchronous=False, checkpoint_every=1).attach(trainer)

    def broken(*args: Any, **kwargs: Any) -> None:
        raise ValueError("of the user")

    trainer.compute_loss = broken
    with pytest.raises(ValueError, match="of the user"):
        trainer.train()
    assert not list(callback.run.folder.glob("step-*"))


@pytest.mark.parametrize(("module", "package"), [("lightning", "lightning"), ("huggingface", "transformers")])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, module: str, package: str) -> None:
    find: Callable[[str], Any] = requirements.find_spec
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == package else find(name))
    monkeypatch.delitem(sys.modules, f"worker_hooks.integrations.{module}")
    with pytest.raises(ImportError, match=f"needs {package}, which is not installed here: pip install"):
        importlib.import_module(f"worker_hooks.integrations.{module}")
