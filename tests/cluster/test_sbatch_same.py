"""The wrapper beside the real sbatch: same argv, same standard output, same stderr in the same order, same end."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.lab.cluster import Lab
from tests.cluster.sbatch_world import SBATCH, Answer, Desk, open_desk
from worker_hooks.cli.sbatch_options import LONG, NONE, OPTIONAL, REQUIRED, SHORT, read_help
from worker_hooks.cli.submission import read_request

pytestmark = pytest.mark.cluster

OK = "#!/bin/sh\ntrue\n"
Case = tuple[list[str], str, dict[str, str]]
# (argv, standard input, environment). What is submitted is submitted held, and taken away with the lab's jobs.
CASES: list[Case] = [
    *(
        (argv, "", {})
        for argv in (
            ["-H", "ok.sh"],
            ["-H", "--parsable", "ok.sh"],
            ["-H", "-Q", "ok.sh"],
            ["-H", "-QQ", "--parsable", "ok.sh", "--parsable"],
            ["--test-only", "ok.sh"],
            ["--test-only", "-Q", "ok.sh"],
            ["header-test-only.sh"],
            ["-H", "header-parsable.sh"],
            ["-H", "--wrap=true"],
            ["-H", "--wrap", "true"],
            ["--wrap", "true", "x"],
            ["-H", "-a", "0-3%2", "ok.sh"],
            ["-H", "-a", "", "ok.sh"],
            ["-a", "3-1", "ok.sh"],
            ["-H", "-n1", ":", "-n1", "ok.sh"],
            ["-H", "header-het.sh"],
            [":", "-H", "ok.sh"],
            ["-a", "0-3", "-n1", ":", "-n1", "ok.sh"],
            ["-H", "--dependency=singleton", "ok.sh"],
            ["--dependency=bad", "ok.sh"],
            ["-M", "nope", "ok.sh"],
            ["-p", "nope", "ok.sh"],
            ["--mem=x", "ok.sh"],
            ["--uid=root", "ok.sh"],
            ["--of-tomorrow", "x", "ok.sh"],
            ["--of-tomorrow=x", "ok.sh"],
            ["-Zx", "ok.sh"],
            ["--nod=1", "ok.sh"],
            ["-N"],
            ["gone.sh"],
            ["folder"],
            ["no-shebang.sh"],
            ["--export-file=gone", "ok.sh"],
            ["-H", "--"],
            ["-h"],
            ["--usage"],
            ["-V"],
        )
    ),
    *(
        (["-H"], script, {})
        for script in (
            "",
            " \n",
            "echo\n",
            OK,
            "#!/bin/sh\r\n",
            "#!/bin/sh\n#SBATCH stray\n",
            "#!/bin/sh\n#SBATCH -J 'x\n",
        )
    ),
    (["-p", "nope", "ok.sh"], "", {"SLURM_EXIT_ERROR": "9"}),
    (["-p", "nope", "ok.sh"], "", {"SLURM_EXIT_ERROR": "0"}),
    (["--of-tomorrow", "ok.sh"], "", {"SLURM_EXIT_ERROR": "9"}),
    (["ok.sh"], "", {"SBATCH_PARTITION": "nope"}),
    (["-H", "-p", "train", "ok.sh"], "", {"SBATCH_PARTITION": "nope"}),
    (["-H", "ok.sh"], "", {"SBATCH_ARRAY_INX": "1-2"}),
    (["ok.sh", "7"], "", {"SBATCH_WAIT": "1"}),
    (["--wait", "-o", "/dev/null", "fails.sh"], "", {}),
]


@pytest.fixture
def desk(lab: Lab) -> Iterator[Desk]:
    for made in open_desk(lab):
        (made.home / "folder").mkdir(exist_ok=True)
        made.script("true", name="ok.sh")
        made.script("exit 7", name="fails.sh")
        made.script("true", "#SBATCH --test-only", name="header-test-only.sh")
        made.script("true", "#SBATCH --parsable", name="header-parsable.sh")
        made.script("true", "#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n1 --no-requeue", name="header-het.sh")
        (made.home / "no-shebang.sh").write_text("true\n")
        # A site's own sbatch in front of Slurm's, with words on both streams.
        (made.home / "bin").mkdir(exist_ok=True)
        real = lab.run("sh", "-c", "command -v sbatch").stdout.strip()
        site = f'#!/bin/sh\necho "Welcome to job 1;2"\necho "site: mind your quota" >&2\n{real} "$@"\n'
        site += 'code=$?\necho "site: good luck" >&2\necho "Good bye"\nexit $code\n'
        (made.home / "bin" / "sbatch").write_text(site)
        (made.home / "bin" / "sbatch").chmod(0o755)
        yield made


def plain(answer: Answer) -> tuple[int, str, str]:
    """Job ids and times are the run's own; lines of ours are taken out."""
    lines = [line for line in answer.stderr.splitlines() if not line.startswith("relume: ")]
    return answer.code, *(re.sub(r"\d+", "N", text) for text in (answer.stdout, "\n".join(lines)))


def run(desk: Desk, cases: list[Case], command: tuple[str, ...], **environ: str) -> list[Answer]:
    calls: list[dict[str, Any]] = [
        {"argv": [*command, *argv], "stdin": stdin, "environ": said | environ} for argv, stdin, said in cases
    ]
    return desk.calls(calls)


def test_nobody_can_tell_the_wrapper_from_sbatch(desk: Desk) -> None:
    theirs, ours = run(desk, CASES, ("sbatch",)), run(desk, CASES, SBATCH)
    different = {
        str(case): (plain(their), plain(our))
        for case, their, our in zip(CASES, theirs, ours, strict=True)
        if plain(their) != plain(our)
    }
    assert different == {}
    codes = {answer.code for answer in theirs}
    assert codes >= {0, 1, 7, 9, 255}, "these cases are told apart by their codes"
    quiet = [our for (argv, _, _), our in zip(CASES, ours, strict=True) if {"-Q", "-QQ"} & set(argv)]
    assert len(quiet) == 3 and not any("relume: " in answer.stderr for answer in quiet)
    assert all(item["registered"] or item["slurm_job_id"] is None for item in desk.identities)


def test_a_sites_words_on_both_streams_keep_their_places(desk: Desk) -> None:
    cases: list[Case] = [(["-H", *argv, "ok.sh"], "", {}) for argv in ([], ["--parsable"], ["-p", "nope"])]
    path = f"{desk.home}/bin:/usr/bin:/bin"
    theirs, ours = (run(desk, cases, command, PATH=path) for command in (("sbatch",), SBATCH))
    assert [plain(our) for our in ours] == [plain(their) for their in theirs]
    assert "Good bye" in theirs[0].stdout and "good luck" in theirs[0].stderr
    submitted = [re.findall(r"\b(\d+)$", answer.stdout, re.MULTILINE)[-1] for answer in ours[:2]]
    assert [desk.identity(job_id)["slurm_job_id"] for job_id in submitted] == submitted


def test_the_cluster_is_named_where_sbatch_names_it(full_lab: Lab) -> None:
    """`--clusters` asks accounting where the clusters are."""
    name = full_lab.state.cluster
    for desk in open_desk(full_lab):
        desk.script("true", name="ok.sh")
        cases: list[Case] = [
            (["-H", *argv, "ok.sh"], "", environ)
            for argv, environ in (
                (["-M", name], {}),
                ([f"--clusters={name}", "--parsable"], {}),
                ([], {"SLURM_CLUSTERS": name}),
                (["-M", "nope"], {}),
            )
        ]
        theirs, ours = run(desk, cases, ("sbatch",)), run(desk, cases, SBATCH)
        assert [plain(our) for our in ours] == [plain(their) for their in theirs]
        assert f" on cluster {name}\n" in ours[0].stdout and f";{name}\n" in ours[1].stdout
        assert {identity["cluster"] for identity in desk.identities} == {name}


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_signal_while_waiting_ends_both_alike_and_the_job_goes_on(desk: Desk, name: str) -> None:
    limit = ("timeout", "--foreground", "--preserve-status", "-s", name, "1.5")
    cases: list[Case] = [(["--wait", "--parsable", "-o", "/dev/null", "--wrap=sleep 30"], "", {})]
    (their,), (our,) = run(desk, cases, (*limit, "sbatch")), run(desk, cases, (*limit, *SBATCH))
    assert plain(our) == plain(their) and our.code > 128
    assert desk.job(our.stdout.strip())["JobState"] in ("RUNNING", "PENDING")
    assert desk.identity(our.stdout.strip())["registered"]


# --- where the script is ----------------------------------------------------------------------------------------------


SKIPPED = {"help", "usage", "version", "wrap", "uid", "gid", "clusters", "cluster", "get-user-env"}
VALUES = ("1", "block", "none", "TERM", "END", "append", "low", "now", "ALL", "nomultithread", "user", "afterok:1")
OPENED = re.compile(r"Unable to open file (.*)")


def said_script(answer: Answer) -> tuple[bool, str | None]:
    """(did sbatch come as far as its script, which one it was)."""
    if found := OPENED.search(answer.stderr):
        return True, found[1]
    return "Batch script is empty" in answer.stderr, None


def valid_values(desk: Desk) -> dict[str, str]:
    """For every option of the installed sbatch that may have one a value that it takes."""
    names = [name for name in LONG if LONG[name] != NONE and name not in SKIPPED]
    tried = [(name, value) for name in names for value in VALUES]
    answers = desk.calls([{"argv": ["sbatch", f"--{name}={value}", "gone.sh"]} for name, value in tried])
    found: dict[str, str] = {}
    for (name, value), answer in zip(tried, answers, strict=True):
        if said_script(answer) == (True, "gone.sh"):
            found.setdefault(name, value)
    return found


def random_argv(dice: random.Random, values: dict[str, str], flags: list[str]) -> list[str]:
    letters = {name: letter for letter, name in SHORT.items()}
    argv: list[str] = []
    for number in range(dice.randrange(6)):
        name = dice.choice([*values, *flags])
        written = name if dice.random() < 0.7 else name[: dice.randrange(2, len(name) + 1)]
        value, arity, letter = values.get(name, ""), LONG[name], letters.get(name)
        if dice.random() < 0.15:
            argv.append(":")
        if letter and dice.random() < 0.5:
            bundle = "".join(dice.choices("HOsv", k=dice.randrange(3))) + letter
            attached = (arity == OPTIONAL and dice.random() < 0.5) or (arity == REQUIRED and dice.random() < 0.5)
            argv += (
                [f"-{bundle}{value}"] if attached else [f"-{bundle}", value] if arity == REQUIRED else [f"-{bundle}"]
            )
        elif arity == NONE:
            argv.append(f"--{written}")
        elif arity == OPTIONAL:
            argv.append(dice.choice([f"--{written}", f"--{written}={value}"]))
        else:
            argv += dice.choice([[f"--{written}={value}"], [f"--{written}", value]])
        if dice.random() < 0.05:
            argv.append(f"gone-{number}.sh")
    ends = [["gone.sh"], ["gone.sh", "--hold", "x"], ["--", "gone.sh"], [":", "gone.sh"], ["-"], [], ["--"]]
    return argv + dice.choice(ends)


def test_the_wrapper_finds_the_script_that_sbatch_finds(desk: Desk) -> None:
    """No file exists, so sbatch says which one it wanted; no script at all is an empty standard input."""
    values = valid_values(desk)
    assert len(values) > 60
    known = desk.calls([{"argv": ["sbatch", f"--{name}", "gone.sh"]} for name in LONG])
    taken = dict(zip(LONG, known, strict=True))
    flags = [
        name for name in LONG if LONG[name] == NONE and name not in SKIPPED and said_script(taken[name])[1] == "gone.sh"
    ]
    installed, dice = read_help(desk.lab.run("sbatch", "--help").stdout), random.Random(8)
    sample = [random_argv(dice, values, flags) for _ in range(600)]
    answers = desk.calls([{"argv": ["sbatch", *argv]} for argv in sample])
    compared, different = 0, {}
    for argv, answer in zip(sample, answers, strict=True):
        came, wanted = said_script(answer)
        if not came:
            continue  # an ambiguous beginning, or options that contradict each other
        compared += 1
        line = read_request(argv, lambda: installed).line
        found = argv[line.script_at] if line.script_at is not None else None
        if found != wanted:
            different[" ".join(argv)] = f"sbatch opens {wanted}, the wrapper reads {found}"
    assert different == {} and compared > 300
