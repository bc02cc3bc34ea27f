"""A run of four saved steps, made once and copied for each test of a resume case."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker_hooks.conftest import RUN_ID
from tests.worker_hooks.resume_stage import Saved, save_steps


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELUME_RUN_ID", RUN_ID)
        return save_steps(tmp_path_factory.mktemp("made"), steps=4)


@pytest.fixture(autouse=True)
def one_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RELUME_RUN_ID", RUN_ID)
    yield


@pytest.fixture
def saved(made: Saved, tmp_path: Path) -> Saved:
    root = tmp_path / "root"
    shutil.copytree(made.root, root)
    return Saved(root, root / made.run.name, made.states)
