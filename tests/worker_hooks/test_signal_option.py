"""`--signal`: who is warned, with what, and how early.

The accepted and refused texts are those of sbatch 22.05, tried.
"""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_hooks.cli import signals
from worker_hooks.cli.signals import NAMES, SignalOption, SignalOptionError, forwarding_lines, parse, wanted, warnings

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("USR2@300", SignalOption("USR2", 300)),
        ("B:USR2@300", SignalOption("USR2", 300, to="batch")),
        ("USR2", SignalOption("USR2", 60)),
        ("R:TERM@120", SignalOption("TERM", 120, overlap=True)),
        ("RB:USR1@60", SignalOption("USR1", 60, to="batch", overlap=True)),
        ("br:usr1@60", SignalOption("USR1", 60, to="batch", overlap=True)),
        ("sigusr2@5", SignalOption("USR2", 5)),
        ("10", SignalOption("USR1", 60)),
        ("12@90", SignalOption("USR2", 90)),
        ("b:9@100", SignalOption("KILL", 100, to="batch")),
        ("64", SignalOption("64", 60)),
        ("11@3", SignalOption("11", 3)),
        ("USR2@", SignalOption("USR2", 0)),
        ("RUSR2@00030", SignalOption("USR2", 30, overlap=True)),
        ("USR2@65535", SignalOption("USR2", 65535)),
    ],
)
def test_what_sbatch_takes(text: str, expected: SignalOption) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@5",
        "B:@3",
        "B:",
        "FOO@3",
        "SEGV@1",
        "TRAP",
        "0",
        "0@5",
        "USR2@70000",
        "USR2@-5",
        "10@5x",
        "X:USR2",
        "B:R:USR2",
    ],
)
def test_what_sbatch_refuses(text: str) -> None:
    with pytest.raises(SignalOptionError, match="--signal="):
        parse(text)


@given(st.sampled_from(sorted(NAMES)), st.integers(0, 65535), st.sampled_from(["steps", "batch"]), st.booleans())
def test_the_text_says_the_same_again(name: str, lead: int, to: signals.Receiver, overlap: bool) -> None:
    option = SignalOption(name, lead, to=to, overlap=overlap)
    assert parse(option.text) == option
    assert option.earliest_s == lead + 60


@given(st.text(max_size=12))
def test_no_text_is_a_surprise(text: str) -> None:
    try:
        assert parse(text).lead_s >= 0
    except SignalOptionError as refused:
        assert text in str(refused)


def test_the_default_is_not_usr1_and_may_be_set() -> None:
    assert wanted({}).signal != "USR1" and wanted({}).to == "steps"
    assert wanted({"RELUME_SIGNAL": "TERM@30"}) == SignalOption("TERM", 30)
    with pytest.raises(SignalOptionError):
        wanted({"RELUME_SIGNAL": "often"})


@pytest.mark.parametrize(
    ("text", "words"),
    [("USR1@300", "NCCL"), ("KILL@300", "cannot be caught"), ("B:USR2@300", "trap"), ("USR2@5", "too late")],
)
def test_what_will_not_work_is_said(text: str, words: str) -> None:
    said = warnings(parse(text))
    assert len(said) == 1 and words in said[0]


def test_what_works_is_left_alone() -> None:
    assert warnings(parse("USR2@300")) == []
    assert warnings(parse("B:USR2@300"), script_traps=True) == []


def test_the_lines_for_b_forward_the_signal_and_wait_for_the_command() -> None:
    """Run by a real shell: the batch shell is signalled, the command catches it, saves, and its exit code is kept."""
    program = (
        "import signal,sys,time\n"
        "signal.signal(signal.SIGUSR2, lambda *_: (print('saved', flush=True), sys.exit(7)))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    command = f'{sys.executable} -c "{program}"'
    script = "\n".join(forwarding_lines(parse("B:USR2@300"), command))
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "ready\n"
        shell.send_signal(12)
        said, _ = shell.communicate(timeout=30)
    assert (said, shell.returncode) == ("saved\n", 7)
