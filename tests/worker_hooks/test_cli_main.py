"""The `relume` command itself."""

import pytest

from worker_hooks._version import __version__
from worker_hooks.cli.main import main

pytestmark = pytest.mark.pure


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"relume {__version__}\n"


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "relume COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["fly"]])
def test_a_command_that_does_not_exist(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "relume COMMAND" in captured.err
