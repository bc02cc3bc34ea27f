"""How the wrapper reads sbatch's command line and sbatch's answer."""

import pytest

from worker_hooks.cli.receipt import Receipt, read_receipt
from worker_hooks.cli.sbatch_options import (
    BUILT_IN,
    LONG,
    NONE,
    OPTIONAL,
    REQUIRED,
    SHORT,
    Table,
    read_command_line,
    read_help,
)
from worker_hooks.cli.submission import UsageError, read_request

pytestmark = pytest.mark.pure
FILES = {"train.sh", "old.sh"}.__contains__


def script_of(argv: list[str]) -> str | None:
    line = read_command_line(argv)
    assert line.argv == argv
    return argv[line.script_at] if line.script_at is not None else None


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        (["train.sh", "-N", "2"], "train.sh"),
        (["-N", "2", "train.sh", "--requeue"], "train.sh"),
        (["-N2", "train.sh"], "train.sh"),
        (["-HQN", "2", "train.sh"], "train.sh"),
        (["-vvN", "2", "train.sh"], "train.sh"),
        (["-k", "train.sh"], "train.sh"),
        (["-sx", "train.sh"], None),
        (["--nodes", "2", "train.sh"], "train.sh"),
        (["--nodes=2", "train.sh"], "train.sh"),
        (["--nodes", "--requeue", "train.sh"], "train.sh"),
        (["-N", "--", "train.sh"], "train.sh"),
        (["-N", "", "train.sh"], "train.sh"),
        (["--nice", "train.sh"], "train.sh"),
        (["--exclusive", "train.sh"], "train.sh"),
        (["--exclusive", "user", "train.sh"], "user"),
        (["--nodel", "gpu1", "train.sh"], "train.sh"),
        (["--requ", "train.sh"], "train.sh"),
        (["--cores", "2", "train.sh"], "train.sh"),
        (["--of-tomorrow=1", "train.sh"], "train.sh"),
        (["--requeue", "--", "-odd.sh"], "-odd.sh"),
        (["--"], None),
        (["-"], "-"),
        (["", "x"], ""),
        (["-N1", "--wrap", "hostname"], None),
        (["-N1"], None),
        ([], None),
        (["-N"], None),
    ],
)
def test_where_the_script_is(argv: list[str], script: str | None) -> None:
    assert script_of(argv) == script


@pytest.mark.parametrize(
    ("argv", "script", "components"),
    [
        (["-N1", ":", "-N2", "--mem", "4G", "train.sh", "x"], "train.sh", 2),
        ([":", "train.sh"], "train.sh", 2),
        (["-N1", ":", ":", "train.sh"], "train.sh", 3),
        (["-N1", ":", "--", "train.sh"], "train.sh", 2),
        (["--", ":", "train.sh"], "train.sh", 1),
        (["-N", ":", "train.sh"], None, 1),
        (["train.sh", ":", "x"], "train.sh", 1),
        (["-N1", ":"], None, 2),
    ],
)
def test_het_jobs_on_the_command_line(argv: list[str], script: str | None, components: int) -> None:
    assert script_of(argv) == script
    assert read_command_line(argv).components == components


def test_options_belong_to_their_component() -> None:
    line = read_command_line(["-J", "a", ":", "-J", "b", "--no-requeue", "x.sh"])
    assert [(option.name, option.value, option.component) for option in line.options] == [
        ("job-name", "a", 0),
        ("job-name", "b", 1),
        ("no-requeue", None, 1),
    ]
    first = line.last("job-name", component=0)
    assert first is not None and first.value == "a" and line.has("no-requeue")


def test_every_short_option_has_a_long_one() -> None:
    assert set(SHORT.values()) <= set(LONG)


def test_the_last_of_repeated_options_counts() -> None:
    last = read_command_line(["--job-name=a", "-J", "b", "x.sh", "-J", "c"]).last("job-name")
    assert last is not None and last.value == "b"


# --- options that the table does not know ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        (["--of-tomorrow", "train.sh"], "train.sh"),
        (["--of-tomorrow", "7", "train.sh"], "train.sh"),
        (["--of-tomorrow", "7", "-N", "2", "--later", "train.sh", "7"], "train.sh"),
        (["--of-tomorrow", "7", "--other", "8", "train.sh"], "train.sh"),
        (["--of-tomorrow", "old.sh", "x"], "old.sh"),
        (["--of-tomorrow", "gone.sh", "x"], "gone.sh"),
        (["-Z", "7", "train.sh"], "train.sh"),
        (["-Z7", "train.sh"], "train.sh"),
        (["-HZ", "train.sh"], "train.sh"),
        (["--of-tomorrow", "--requeue", "train.sh"], "train.sh"),
        (["--of-tomorrow"], None),
    ],
)
def test_an_unknown_option_takes_the_next_word_only_if_that_is_no_script_and_a_later_one_is(
    argv: list[str], script: str | None
) -> None:
    line = read_command_line(argv, is_script=FILES)
    assert (argv[line.script_at] if line.script_at is not None else None) == script
    assert line.unknown


HELP = """
Usage: sbatch [OPTIONS(0)...] [ : [OPTIONS(N)...]] script(0) [args(0)...]
  -a, --array=indexes         job array index values
      --nice[=value]          decrease scheduling priority by value
      --container             Path to OCI container bundle
  -H, --hold                  submit job in held state
  -B  --extra-node-info=S[:C[:T]]  combine request of sockets per node,
      --wrap[=command string] wrap command string in a sh script and submit
      --warp-speed            go faster
  -Z, --zone=name             where
Options provided by plugins:
      --container-image=[USER@]IMAGE  [pyxis] the image to use
      --[no-]container-mount-home  [pyxis] bind mount
      --renice[=prio]         something
"""


def test_what_sbatchs_help_says_of_options_the_table_does_not_know() -> None:
    table = read_help(HELP)
    assert {name: table.long[name] for name in table.listed} == {
        "array": REQUIRED,
        "nice": OPTIONAL,
        "container": REQUIRED,
        "hold": NONE,
        "extra-node-info": REQUIRED,
        "wrap": REQUIRED,
        "warp-speed": NONE,
        "zone": REQUIRED,
        "container-image": REQUIRED,
        "container-mount-home": NONE,
        "no-container-mount-home": NONE,
        "renice": OPTIONAL,
    }
    assert table.short["Z"] == "zone" and table.short["N"] == "nodes"
    assert table.long["no-requeue"] == NONE and table.full_name("wait-all") == "wait-all-nodes", "not all are listed"
    assert read_help("sbatch: error: no configuration") == BUILT_IN


def test_the_installed_sbatch_is_asked_once_and_only_when_there_is_need() -> None:
    asked = []

    def learn() -> Table:
        asked.append(1)
        return read_help(HELP)

    assert read_request(["-N2", "--array=1", "train.sh"], learn).line.script_at == 2 and not asked
    words = ["--container-image", "foo.sqsh", "-HZ", "x", "--zo", "y", "--warp-speed", "--no-requeue", "t.sh", "--odd"]
    request = read_request(words, learn)
    assert words[request.line.script_at or 0] == "t.sh" and request.line.has("no-requeue")
    assert len(asked) == 1 and not request.line.unknown
    read_request(["--odd", "--strange", "t.sh"], learn)
    assert len(asked) == 2


def test_a_beginning_that_several_versions_share_is_told_apart_by_the_installed_one() -> None:
    assert script_of(["--dis", "block", "t.sh"]) == "block", "the built-in table has two of them"
    installed = Table(LONG, SHORT, frozenset({"distribution", "nodes"}))
    request = read_request(["--dis", "block", "t.sh"], lambda: installed)
    assert request.line.argv[request.line.script_at or 0] == "t.sh"


# --- our own --------------------------------------------------------------------------------------------------------


def test_own_options_are_taken_out_and_nothing_else_changes() -> None:
    argv = ["-N2", "--relume-name", "my run", "--comment=a b", "--relume-require", "train.sh", "--relume-name", "x"]
    request = read_request(argv, is_script=FILES)
    assert request.own == {"name": "my run", "require": "yes"}
    assert request.line.argv == ["-N2", "--comment=a b", "train.sh", "--relume-name", "x"]


def test_own_options_between_others_that_nobody_knows() -> None:
    argv = ["--of-tomorrow", "7", "--relume-name=n", "--later", "train.sh", "--relume-url=x"]
    request = read_request(argv, is_script=FILES)
    assert request.own == {"name": "n"}
    assert request.line.argv == ["--of-tomorrow", "7", "--later", "train.sh", "--relume-url=x"]


@pytest.mark.parametrize(
    "argv", [["--relume-nmae=x", "t"], ["--relume-name="], ["--relume-require=1"], ["--relume-url"]]
)
def test_own_options_that_cannot_be_understood(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        read_request(argv)


# --- the answer -----------------------------------------------------------------------------------------------------


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
