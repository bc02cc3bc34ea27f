"""`relume sbatch` as a process, around a fake sbatch: terminals, pipes, closed streams, signals, a light start."""

import json
import os
import pty
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.worker_hooks.sbatch_desk import WRAPPER, Desk

pytestmark = pytest.mark.pure


def test_on_a_terminal_sbatch_finds_a_terminal(desk: Desk) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", WRAPPER, "sbatch", "-Q", "train.sh"]
    fake = desk.folder / "bin" / "sbatch"
    fake.write_text('#!/bin/sh\ntest -t 1 && echo "a terminal"\n', encoding="utf-8")
    with subprocess.Popen(command, env=desk.environ, cwd=desk.folder, stdout=theirs) as process:
        os.close(theirs)
        assert os.read(ours, 100).strip() == b"a terminal"
        assert process.wait(timeout=20) == 0
    os.close(ours)


def test_a_script_from_a_pipe_is_read_by_both(desk: Desk) -> None:
    """`relume sbatch <(make_script)`: as with sbatch itself."""
    reader = desk.folder / "bin" / "sbatch"
    reader.write_text(
        f'#!/bin/sh\nfor last; do :; done\ncat "$last" > {desk.folder}/seen\necho Submitted batch job 77\n'
    )
    script = "#!/bin/sh\n#SBATCH --no-requeue\ntrue\n"
    for word, redirected in (("/dev/fd/9", "9"), ("/dev/stdin", "0")):
        (desk.folder / "seen").unlink(missing_ok=True)
        command = f'printf %s "$SCRIPT" | "$PYTHON" -c "$WRAPPER" sbatch {word} {redirected}<&0'
        environ = desk.environ | {"SCRIPT": script, "PYTHON": sys.executable, "WRAPPER": WRAPPER}
        done = subprocess.run(
            ["sh", "-c", command], env=environ, capture_output=True, text=True, timeout=30, check=True
        )
        assert (desk.folder / "seen").read_text() == script, done.stderr
        assert "--requeue" not in done.stderr


def test_the_wrapper_is_light(desk: Desk) -> None:
    """Before sbatch has answered nothing heavy is imported: this is what keeps the start under 80 ms."""
    heavy = {"ssl", "http", "http.client", "asyncio", "django", "torch", "numpy", "argparse", "email", "urllib.request"}
    show = (
        "import sys, worker_hooks.cli.sbatch as wrapper\n"
        "from worker_hooks.cli.main import main\n"
        "wrapper._after = lambda *_: print(sorted(sys.modules), file=sys.stderr)\n"
        "main(['sbatch', '-Q', 'train.sh'])"
    )
    command = [sys.executable, "-c", show]
    done = subprocess.run(
        command, check=False, env=desk.environ, cwd=desk.folder, capture_output=True, text=True, timeout=30
    )
    modules = set(json.loads(done.stderr.splitlines()[-1].replace("'", '"')))
    assert "worker_hooks.cli.submission" in modules
    assert modules & heavy == set()


# --- closed and full ------------------------------------------------------------------------------------------------


def shell(desk: Desk, redirection: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """The wrapper under a shell that redirects its streams."""
    words = {"PYTHON": sys.executable, "WRAPPER": WRAPPER}
    command = ["sh", "-c", f'"$PYTHON" -c "$WRAPPER" sbatch train.sh {redirection}']
    return subprocess.run(
        command,
        check=False,
        env=desk.environ | words | environ,
        cwd=desk.folder,
        capture_output=True,
        timeout=30,
        text=True,
    )


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_or_full_costs_nothing_but_its_words(desk: Desk, redirection: str) -> None:
    done = shell(desk, redirection)
    assert done.returncode == 0 and desk.identity["registered"] and desk.identity["slurm_job_id"] == "77"
    assert done.stdout == ("" if ">" in redirection.replace("2>", "") else "Submitted batch job 77\n")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_words_and_output_in_one_file_keep_their_order(desk: Desk) -> None:
    desk.controller.away()
    lines = shell(desk, "2>&1").stdout.splitlines()
    assert lines[:3] == [
        "relume: added --requeue --open-mode=append",
        "sbatch: a site's warning",
        "Submitted batch job 77",
    ]
    assert lines[3].startswith("relume: ") and len(lines) == 4


def fake(desk: Desk, body: str) -> None:
    (desk.folder / "bin" / "sbatch").write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")


def started(desk: Desk, *argv: str, **keys: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", WRAPPER, "sbatch", *argv]
    return subprocess.Popen(command, env=desk.environ, cwd=desk.folder, stdout=subprocess.PIPE, **keys)


def test_a_reader_that_went_away_ends_the_wrapper_as_it_ends_sbatch(desk: Desk) -> None:
    fake(desk, "sleep 0.3; echo Submitted batch job 77")
    with started(desk, "train.sh") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=20) == -signal.SIGPIPE
    assert desk.identity["registered"]


@pytest.mark.parametrize("blocking", [True, False])
def test_a_full_pipe_loses_nothing(desk: Desk, blocking: bool) -> None:
    fake(desk, "head -c 300000 /dev/zero | tr '\\0' x; echo; echo Submitted batch job 77")
    ours, theirs = os.pipe()
    os.set_blocking(theirs, blocking)
    command = [sys.executable, "-c", WRAPPER, "sbatch", "-Q", "train.sh"]
    with subprocess.Popen(command, env=desk.environ, cwd=desk.folder, stdout=theirs) as process:
        os.close(theirs)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        with os.fdopen(ours, "rb") as reader:
            assert reader.read() == b"x" * 300000 + b"\nSubmitted batch job 77\n"
    assert process.returncode == 0 and desk.identity["slurm_job_id"] == "77"


def test_what_sbatch_leaves_running_is_not_waited_for(desk: Desk) -> None:
    fake(desk, "sleep 60 2>&- & echo $! >left; echo Submitted batch job 77")
    assert desk.submit("train.sh").stdout == "Submitted batch job 77\n"
    os.kill(int((desk.folder / "left").read_text()), signal.SIGKILL)


# --- signals --------------------------------------------------------------------------------------------------------


WAITS = "echo Submitted batch job 77; exec sleep 60"


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"])
def test_a_signal_ends_sbatch_and_the_wrapper_alike(desk: Desk, name: str) -> None:
    number = getattr(signal, f"SIG{name}")
    fake(desk, f"echo $$ >pid; {WAITS}")
    with started(desk, "--wait", "train.sh") as process:
        assert process.stdout is not None and process.stdout.readline() == b"Submitted batch job 77\n"
        process.send_signal(number)
        assert process.wait(timeout=20) == -number
    with pytest.raises(ProcessLookupError):
        os.kill(int((desk.folder / "pid").read_text()), 0)
    assert desk.identity["registered"] and desk.identity["slurm_job_id"] == "77"


def test_a_signal_to_sbatch_alone_is_seen_by_the_shell(desk: Desk) -> None:
    fake(desk, "echo Submitted batch job 77; kill -TERM $$")
    with started(desk, "--wait", "train.sh") as process:
        assert process.wait(timeout=20) == -signal.SIGTERM


def test_who_ignores_hangups_goes_on_ignoring_them(desk: Desk) -> None:
    fake(desk, "echo Submitted batch job 77; kill -HUP $$ $PPID; echo still here")
    ignore = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    )
    command = [sys.executable, "-c", ignore, sys.executable, "-c", WRAPPER, "sbatch", "--wait", "train.sh"]
    done = subprocess.run(command, check=False, env=desk.environ, cwd=desk.folder, capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, b"Submitted batch job 77\nstill here\n")


# --- options that nobody knows --------------------------------------------------------------------------------------


def test_the_installed_sbatch_is_asked_about_an_option_that_the_table_does_not_know(desk: Desk) -> None:
    fake(
        desk,
        'if [ "$1" = --help ]; then echo "      --container-image=IMAGE  [pyxis]"; exit 0; fi\n'
        'for word; do echo "$word" >>words; done; echo Submitted batch job 77',
    )
    done = desk.submit(
        "--container-image", "train.sh", "--no-requeue", "--open-mode=append", "real.sh", "--relume-name"
    )
    assert (done.returncode, done.stderr) == (0, "")
    words = (desk.folder / "words").read_text().split()
    assert words == ["--container-image", "train.sh", "--no-requeue", "--open-mode=append", "real.sh", "--relume-name"]
    assert desk.identity["script"] == "real.sh"


def test_an_export_file_gets_our_names_without_being_touched(desk: Desk) -> None:
    (desk.folder / "vars").write_bytes(b"A=1\0B=2\0")
    fake(desk, 'for word; do case "$word" in --export-file=*) cat "/dev/fd/${word#*=}" >seen; esac; done; exit 1')
    desk.submit("-N1", "--export-file=vars", "train.sh")
    seen = (desk.folder / "seen").read_bytes().split(b"\0")
    assert seen[:2] == [b"A=1", b"B=2"] and seen[2].startswith(b"RELUME_RUN_ID=tj-")
    assert (desk.folder / "vars").read_bytes() == b"A=1\0B=2\0"
