"""How the wrapper reads sbatch's command line, a script's header and sbatch's answer."""

import pytest

from worker_hooks.cli.receipt import Receipt, read_receipt
from worker_hooks.cli.sbatch_options import LONG, SHORT, read_command_line
from worker_hooks.cli.script_header import HeaderError, read_header
from worker_hooks.cli.submission import UsageError, is_array, make_plan, merged_export, read_request

pytestmark = pytest.mark.pure
EXPORTS = {"RELUME_RUN_ID": "tj-0123456789ab", "RELUME_IDENTITY": "/x"}


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        (["train.sh", "-N", "2"], "train.sh"),
        (["-N", "2", "train.sh", "--requeue"], "train.sh"),
        (["-N2", "train.sh"], "train.sh"),
        (["-HQN", "2", "train.sh"], "train.sh"),
        (["-k", "train.sh"], "train.sh"),
        (["--nodes", "2", "train.sh"], "train.sh"),
        (["--nodes=2", "train.sh"], "train.sh"),
        (["--nice", "train.sh"], "train.sh"),
        (["--exclusive", "train.sh"], "train.sh"),
        (["--nodel", "gpu1", "train.sh"], "train.sh"),
        (["--of-tomorrow=1", "train.sh"], "train.sh"),
        (["--requeue", "--", "-odd.sh"], "-odd.sh"),
        (["-N1", ":", "-N2", "--mem", "4G", "train.sh", "x"], "train.sh"),
        (["-N1", "--wrap", "hostname"], None),
        (["-N1"], None),
        ([], None),
        (["-N"], None),
    ],
)
def test_where_the_script_is(argv: list[str], script: str | None) -> None:
    line = read_command_line(argv)
    assert (argv[line.script_at] if line.script_at is not None else None) == script
    assert line.argv == argv


def test_every_short_option_has_a_long_one() -> None:
    assert set(SHORT.values()) <= set(LONG)


def test_the_last_of_repeated_options_counts() -> None:
    last = read_command_line(["--job-name=a", "-J", "b", "x.sh", "-J", "c"]).last("job-name")
    assert last is not None and last.value == "b"


def test_own_options_are_taken_out_and_nothing_else_changes() -> None:
    argv = ["-N2", "--relume-name", "my run", "--comment=a b", "--relume-require", "train.sh", "--relume-name", "x"]
    request = read_request(argv)
    assert request.own == {"name": "my run", "require": "yes"}
    assert request.line.argv == ["-N2", "--comment=a b", "train.sh", "--relume-name", "x"]


@pytest.mark.parametrize(
    "argv", [["--relume-nmae=x", "t"], ["--relume-name="], ["--relume-require=1"], ["--relume-url"]]
)
def test_own_options_that_cannot_be_understood(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        read_request(argv)


def test_header_lines_count_only_before_the_first_command() -> None:
    script = b"#!/bin/bash\n\n# a comment\n#SBATCH -N 2 --requeue # why\n#SBATCH --export=A='b c'\r\n"
    script += b"#RELUME name=big checkpoint_root=/ck\n#RELUME require\n  #SBATCH -J indented\nsrun x\n#SBATCH -J late\n"
    header = read_header(script)
    assert [(option.name, option.value) for option in header.sbatch.options] == [
        ("nodes", "2"),
        ("requeue", None),
        ("export", "A=b c"),
    ]
    assert header.relume == {"name": "big", "checkpoint-root": "/ck", "require": "yes"}


@pytest.mark.parametrize("line", ["nmae=x", "name", "colour=red"])
def test_a_relume_line_that_cannot_be_understood_names_itself(line: str) -> None:
    with pytest.raises(HeaderError, match=rf"line 2: #RELUME {line}"):
        read_header(f"#!/bin/sh\n#RELUME {line}\n".encode())


def plan(argv: list[str], script: str = "", **environ: str):
    request, header = read_request(argv), read_header(script.encode())
    return make_plan(request, header, environ, EXPORTS, is_array(request, header, environ))


ADDED = ["--requeue", "--open-mode=append"]


@pytest.mark.parametrize(
    ("argv", "script", "environ", "added"),
    [
        (["t"], "", {}, ADDED),
        (["--requeue", "t"], "", {}, ["--open-mode=append"]),
        (["--no-requeue", "t"], "", {}, ["--open-mode=append"]),
        (["--open-mode", "truncate", "t"], "", {}, ["--requeue"]),
        (["t"], "#SBATCH --no-requeue --open-mode=truncate", {}, []),
        (["t"], "", {"SBATCH_NO_REQUEUE": "", "SBATCH_OPEN_MODE": "t"}, []),
        (["t"], "", {"SBATCH_REQUEUE": "1"}, ["--open-mode=append"]),
        (["t", "--no-requeue"], "", {}, ADDED),
    ],
)
def test_requeue_and_open_mode_are_added_only_where_the_user_said_nothing(
    argv: list[str], script: str, environ: dict[str, str], added: list[str]
) -> None:
    made = plan(argv, script, **environ)
    assert made.argv == [*added, *argv]
    assert made.notes == ([f"added {' '.join(added)}"] if added else [])


NAMES = "RELUME_RUN_ID,RELUME_IDENTITY"


@pytest.mark.parametrize(
    ("value", "merged"),
    [
        ("ALL", "ALL"),
        ("all,A=1", "all,A=1"),
        ("NONE", NAMES),
        ("none", NAMES),
        ("A,B=2", f"A,B=2,{NAMES}"),
        ("A=x,ALL", "A=x,ALL"),
    ],
)
def test_our_names_join_the_users_export_list(value: str, merged: str) -> None:
    assert merged_export(value, EXPORTS) == merged
    assert plan([*ADDED, f"--export={value}", "t"]).argv == [*ADDED, f"--export={merged}", "t"]
    assert plan([*ADDED, "--export", value, "t"]).argv == [*ADDED, f"--export={merged}", "t"]
    assert plan([*ADDED, "t"], SBATCH_EXPORT=value).environ["SBATCH_EXPORT"] == merged
    from_script = plan([*ADDED, "t"], f"#SBATCH --export={value}").argv
    assert from_script == ([*ADDED, "t"] if merged == value else [f"--export={merged}", *ADDED, "t"])


def test_without_an_export_option_the_environment_is_enough() -> None:
    made = plan([*ADDED, "t"], A="1")
    assert made.argv == [*ADDED, "t"] and made.environ == {"A": "1", **EXPORTS}


def test_a_job_that_submits_another_does_not_hand_its_identity_on() -> None:
    made = plan(["--array=0-3", "t"], RELUME_RUN_ID="tj-aaaaaaaaaaaa", RELUME_IDENTITY="/old")
    assert not made.tracked and made.environ == {} and "tracked from Slurm's side" in made.notes[0]
    assert plan(["t"], RELUME_RUN_ID="tj-aaaaaaaaaaaa").environ == EXPORTS


@pytest.mark.parametrize("script", ["#SBATCH -a 1-3", ""])
def test_arrays_are_seen_wherever_they_are_asked_for(script: str) -> None:
    environ = {} if script else {"SBATCH_ARRAY_INX": "1-3"}
    assert not plan(["t"], script, **environ).tracked


@pytest.mark.parametrize(
    ("output", "parsable", "expected"),
    [
        (b"Submitted batch job 12\n", False, ("12", None)),
        (b"Submitted batch job 12 on cluster big\n", False, ("12", "big")),
        (b"Welcome!\nSubmitted batch job 12\nBye\n", False, ("12", None)),
        (b"12\n", True, ("12", None)),
        (b"banner\n12;big\n", True, ("12", "big")),
        (b"12\n", False, (None, None)),
        (b"", False, (None, None)),
    ],
)
def test_the_job_id_in_sbatchs_answer(output: bytes, parsable: bool, expected: tuple[str | None, str | None]) -> None:
    assert read_receipt(output, parsable, 0) == Receipt(0, *expected)
