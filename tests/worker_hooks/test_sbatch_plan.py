"""What the wrapper adds to an sbatch call, and how it reads a script's header."""

from pathlib import Path

import pytest

from worker_hooks.cli.script_header import HeaderError, read_header, split_words
from worker_hooks.cli.script_text import find_script
from worker_hooks.cli.submission import Plan, array_of, make_plan, merged_export, merged_export_file, read_request

pytestmark = pytest.mark.pure
EXPORTS = {"RELUME_RUN_ID": "tj-0123456789ab", "RELUME_IDENTITY": "/x"}
ADDED = ["--requeue", "--open-mode=append"]


def plan(argv: list[str], script: str = "", **environ: str) -> Plan:
    text = script.encode()
    return make_plan(read_request(argv), read_header(text), environ, EXPORTS, text)


# --- the header -----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" -J a#b", ["-J", "a"]),
        (" -J 'a b'x", ["-J", "a bx"]),
        (r" -J a\ b", ["-J", "a", "b"]),
        (r' -J "a\"b"', ["-J", 'a"b']),
        (r" -J 'a\'b'", ["-J", "a'b"]),
        (r" -J a\nb", ["-J", "anb"]),
        (r" -J a\\b", ["-J", r"a\b"]),
        (r" -J a\#b", ["-J", "a#b"]),
        (' -J "a\'b"', ["-J", "a'b"]),
        (" -J x\\", ["-J", "x"]),
        ("\t-J\tx\f-n2", ["-J", "x", "-n2"]),
        (" --job-name='' -J ''", ["--job-name=", "-J"]),
        (' -J "x"#y', ["-J", "x"]),
        (" -J 'abc", ["-J", "abc"]),
        (" hetjob", [":"]),
        (" -J x packjob", ["-J", "x", ":"]),
        (" -J 'hetjob'", ["-J", "hetjob"]),
    ],
)
def test_a_directive_is_split_as_sbatch_splits_it(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_the_value_of_an_unknown_directive_hides_nothing_behind_it() -> None:
    made = plan(["t"], "#!/bin/sh\n#SBATCH --container-image foo.sqsh\n#SBATCH --no-requeue --open-mode=truncate\n")
    assert made.argv == ["t"]


@pytest.mark.parametrize("line", ["nmae=x", "name", "name=", "colour=red", "require=often"])
def test_a_relume_line_that_cannot_be_understood_names_itself(line: str) -> None:
    with pytest.raises(HeaderError, match=rf"line 2: #RELUME {line}"):
        read_header(f"#!/bin/sh\n#RELUME {line}\n".encode())


@pytest.mark.parametrize(("word", "wanted"), [("require", True), ("require=1", True), ("require=no", False)])
def test_a_requirement_can_be_said_and_unsaid(word: str, wanted: bool) -> None:
    assert ("require" in read_header(f"#!/bin/sh\n#RELUME {word}\n".encode()).relume) is wanted


def test_directives_of_all_components_of_a_het_job_are_the_jobs() -> None:
    script = "#!/bin/sh\n#SBATCH -n1 -J lead\n#RELUME name=a\n#SBATCH hetjob\n#RELUME url=http://h:1 name=a\n"
    script += "#SBATCH -n2 -J other --no-requeue\n"
    header = read_header(script.encode())
    assert header.relume == {"name": "a", "url": "http://h:1"} and header.sbatch.components == 2
    made = plan(["--open-mode=append", "t"], script)
    assert made.argv == ["--open-mode=append", "t"] and made.job_name == "lead"


def test_components_that_contradict_each_other_are_told_both_lines() -> None:
    script = b"#!/bin/sh\n#RELUME name=a\n#SBATCH hetjob\n#RELUME name=b\n"
    with pytest.raises(HeaderError, match=r"line 4: #RELUME name=b: line 2 says name=a for another component"):
        read_header(script)


# --- what is added --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "script", "environ", "added"),
    [
        (["t"], "", {}, ADDED),
        (["--requeue", "t"], "", {}, ["--open-mode=append"]),
        (["--no-requeue", "t"], "", {}, ["--open-mode=append"]),
        (["--no-req", "t"], "", {}, ["--open-mode=append"]),
        (["-n1", ":", "--no-requeue", "t"], "", {}, ["--open-mode=append"]),
        (["--open-mode", "truncate", "t"], "", {}, ["--requeue"]),
        (["t"], "#SBATCH --no-requeue --open-mode=truncate", {}, []),
        (["t"], "#SBATCH -n1\n#SBATCH hetjob\n#SBATCH --requeue", {}, ["--open-mode=append"]),
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


@pytest.mark.parametrize(
    ("argv", "script", "environ", "added"),
    [
        (["t"], "", {}, []),
        (["t"], "", {"RELUME_SIGNAL": ""}, []),
        (["t"], "", {"RELUME_SIGNAL": "USR2@300"}, ["--signal=USR2@300"]),
        (["t"], "#SBATCH -N2", {"RELUME_SIGNAL": "TERM"}, ["--signal=TERM@60"]),
        (["--signal=USR2@300", "t"], "", {"RELUME_SIGNAL": "TERM"}, []),
        (["--sig", "USR2@300", "t"], "", {"RELUME_SIGNAL": "TERM"}, []),
        (["t"], "#SBATCH --signal=USR2@300", {"RELUME_SIGNAL": "TERM"}, []),
        (["t"], "", {"RELUME_SIGNAL": "TERM", "SBATCH_SIGNAL": "USR2@300"}, []),
    ],
)
def test_a_signal_is_asked_for_only_on_request_and_never_over_the_users_own(
    argv: list[str], script: str, environ: dict[str, str], added: list[str]
) -> None:
    made = plan([*ADDED, *argv], script, **environ)
    assert made.argv == [*added, *ADDED, *argv]
    assert made.notes == ([f"added {' '.join(added)}"] if added else [])


@pytest.mark.parametrize(
    ("argv", "script", "environ", "words"),
    [
        (["--signal=USR1@300", "t"], "", {}, "NCCL"),
        (["t"], "#SBATCH --signal=B:USR2@300", {}, "has to trap it"),
        (["t"], "", {"SBATCH_SIGNAL": "KILL@300"}, "cannot be caught"),
        (["t"], "", {"RELUME_SIGNAL": "often"}, "RELUME_SIGNAL"),
    ],
)
def test_what_will_not_work_as_hoped_is_said_and_left(
    argv: list[str], script: str, environ: dict[str, str], words: str
) -> None:
    made = plan([*ADDED, *argv], script, **environ)
    assert made.argv == [*ADDED, *argv]
    (note,) = made.notes
    assert words in note


def test_a_signal_that_sbatch_refuses_is_sbatchs_to_refuse() -> None:
    assert plan([*ADDED, "--signal=often", "t"]).notes == []


def test_a_batch_shell_that_traps_is_believed() -> None:
    assert plan([*ADDED, "--signal=B:USR2@300", "t"], "#!/bin/sh\ntrap 'kill -USR2 $pid' USR2\n").notes == []


# --- exports --------------------------------------------------------------------------------------------------------


NAMES = "RELUME_RUN_ID,RELUME_IDENTITY"


@pytest.mark.parametrize(
    ("value", "merged"),
    [
        ("ALL", "ALL"),
        ("all,A=1", "all,A=1"),
        ("A=x,ALL", "A=x,ALL"),
        ("A,B=2 , ALL", f"A,B=2 , ALL,{NAMES}"),
        ("NONE", NAMES),
        ("none", NAMES),
        ("NIL", NAMES),
        ("", NAMES),
        ("A,B=2", f"A,B=2,{NAMES}"),
    ],
)
def test_our_names_join_the_users_export_list(value: str, merged: str) -> None:
    assert merged_export(value, EXPORTS) == merged
    assert plan([*ADDED, f"--export={value}", "t"]).argv == [*ADDED, f"--export={merged}", "t"]
    assert plan([*ADDED, "--export", value, "t"]).argv == [*ADDED, "--export", merged, "t"]
    assert plan([*ADDED, "t"], SBATCH_EXPORT=value).environ["SBATCH_EXPORT"] == merged
    from_script = plan([*ADDED, "t"], f"#SBATCH --export={value!r}").argv
    assert from_script == ([*ADDED, "t"] if merged == value else [f"--export={merged}", *ADDED, "t"])


def test_without_an_export_option_the_environment_is_enough() -> None:
    made = plan([*ADDED, "t"], A="1")
    assert made.argv == [*ADDED, "t"] and made.environ == {"A": "1", **EXPORTS}


@pytest.mark.parametrize("content", [b"", b"A=1\0B=2\0", b"A=1\0B=2"])
def test_an_export_file_gets_our_variables_behind_the_users(content: bytes) -> None:
    merged = merged_export_file(content, EXPORTS)
    assert merged.split(b"\0") == [
        *content.split(b"\0")[: 2 if content else 0],
        b"RELUME_RUN_ID=tj-0123456789ab",
        b"RELUME_IDENTITY=/x",
        b"",
    ]


def test_a_job_that_submits_another_does_not_hand_its_identity_on() -> None:
    assert plan(["t"], RELUME_RUN_ID="tj-aaaaaaaaaaaa", RELUME_IDENTITY="/old").environ == EXPORTS


# --- arrays and scripts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "script", "environ", "tasks"),
    [
        (["-a", "0-3%2", "t"], "", {}, "0-3%2"),
        (["t"], "#SBATCH -a 1-3", {}, "1-3"),
        (["t"], "", {"SBATCH_ARRAY_INX": "1-3"}, "1-3"),
        (["t"], "#SBATCH -a 1-3", {"SBATCH_ARRAY_INX": "7"}, "7"),
        (["--array=9", "t"], "#SBATCH -a 1-3", {"SBATCH_ARRAY_INX": "7"}, "9"),
        (["t"], "#SBATCH -a 1-3", {"SBATCH_ARRAY_INX": ""}, None),
        (["-a", "", "t"], "#SBATCH -a 1-3", {}, None),
        (["t", "-a", "1-3"], "", {}, None),
    ],
)
def test_arrays_are_seen_wherever_they_are_asked_for(
    argv: list[str], script: str, environ: dict[str, str], tasks: str | None
) -> None:
    assert array_of(read_request(argv), read_header(script.encode()), environ) == tasks


def test_where_a_script_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("work", "bin"):
        (tmp_path / name).mkdir()
    for name in ("work/both.sh", "both.sh", "work/job.sh", "bin/tool.sh", "here.sh"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    search, work = str(tmp_path / "bin"), Path("work")
    assert find_script("both.sh", search, work) == work / "both.sh"
    assert find_script("job.sh", search, work) == work / "job.sh"
    assert find_script("./job.sh", search, work) == Path("./job.sh")
    assert find_script("here.sh", search, work) == Path("here.sh")
    assert find_script("tool.sh", search, work) == tmp_path / "bin" / "tool.sh"
    assert find_script("work", search) == Path("work")
