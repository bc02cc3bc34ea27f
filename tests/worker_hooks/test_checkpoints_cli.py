"""`relume checkpoints`: what it refuses, what it imports, how it writes numbers."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker_hooks.checkpoint_shelf import Shelf
from worker_hooks.cli import checkpoints_text
from worker_hooks.cli.main import main

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly", "/tmp"],
        ["prune", "/tmp"],
        ["prune", "/tmp", "--keep", "0"],
        ["verify", "/tmp", "--limit", "-1"],
        ["diff", "/tmp"],
    ],
)
def test_what_is_not_understood_is_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["checkpoints", *argv])
    assert ended.value.code == 2


@pytest.mark.parametrize("command", [["list"], ["verify"], ["prune", "--keep", "2"]])
def test_a_directory_that_is_not_there_is_2(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", command[0], str(tmp_path / "none"), *command[1:]]) == 2
    assert "No such file" in capsys.readouterr().err


def test_prune_refuses_one_checkpoint_and_a_force_without_reason(shelf: Shelf) -> None:
    shelf.mint()
    folder = shelf.commit(10, 1)
    assert main(["checkpoints", "prune", str(folder), "--keep", "1"]) == 2
    assert main(["checkpoints", "prune", str(shelf.run), "--keep", "1", "--force", " "]) == 2


def test_list_verify_and_prune_never_import_torch(shelf: Shelf) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    code = (
        "import sys; from worker_hooks.cli.main import main\n"
        "for command in (['list'], ['verify'], ['prune', '--keep', '1']):\n"
        f"    assert main(['checkpoints', command[0], {str(shelf.run)!r}, *command[1:]]) == 0\n"
        "bad = {'torch', 'numpy', 'pickle', 'django'} & set(sys.modules)\n"
        "sys.exit(f'imported: {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 60, "1024.0 PiB")])
def test_sizes(count: int, text: str) -> None:
    assert checkpoints_text.size(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (-1, "0 s"), (90, "1.5 min"), (86400, "1.0 d")])
def test_ages(seconds: float | None, text: str) -> None:
    assert checkpoints_text.age(seconds) == text
