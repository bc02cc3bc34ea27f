"""`relume sbatch` around the installed sbatch: what the job finds, and what the tables say of the installed version."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from deploy.lab.cluster import Lab
from tests.cluster.sbatch_world import Desk, open_desk
from worker_hooks.cli.sbatch_options import LONG, NONE, OPTIONAL, REQUIRED, SHORT

pytestmark = pytest.mark.cluster
# These end sbatch before it reads on.
ENDING = {"help", "usage", "version"}


@pytest.fixture
def desk(lab: Lab) -> Iterator[Desk]:
    yield from open_desk(lab)


def listed_options(desk: Desk) -> dict[str, str]:
    """Long option to its letter ("" without), as the installed sbatch's help and manual page list them."""
    text = desk.lab.run("sbatch", "--help").stdout
    manual = desk.lab.run("man", "--encoding=ascii", "sbatch", check=False, env={"MANWIDTH": "200"}).stdout
    plain = re.sub(".\x08", "", manual)
    options = plain[plain.find("\nOPTIONS") : plain.find("\nPERFORMANCE")]
    found = re.findall(r"^\s+(?:-(\w),? +)?--([a-z][a-z-]+)", text, re.MULTILINE)
    found += re.findall(r"^ {7}(?:-(\w), )?--([a-z][a-z-]+)", options, re.MULTILINE)
    return {name: letter for letter, name in found}


def test_the_option_table_agrees_with_the_installed_sbatch(desk: Desk) -> None:
    """Asked of sbatch itself: does `--help` after the option still count, and may the option have a value? Also of
    options that it does not list; one that this version does not have proves nothing."""
    listed = listed_options(desk)
    assert len(listed) > 80 and not set(listed) - set(LONG)
    assert {name: letter for name, letter in listed.items() if letter and SHORT.get(letter) != name} == {}
    names = sorted(set(LONG) - ENDING)
    follow = desk.calls([{"argv": ["sbatch", f"--{name}", "--help", "gone.sh"]} for name in names])
    attached = desk.calls([{"argv": ["sbatch", f"--{name}=1", "--help"]} for name in names])
    wrong, asked = {}, 0
    for name, alone, with_value in zip(names, follow, attached, strict=True):
        if "unrecognized option" in alone.stderr:
            assert name not in listed
            continue
        asked += 1
        takes = "doesn't allow an argument" not in with_value.stderr
        arity = (OPTIONAL if takes else NONE) if "Usage: sbatch" in alone.stdout else REQUIRED
        if LONG[name] != arity:
            wrong[name] = f"table {LONG[name]}, sbatch {arity}"
    assert wrong == {} and asked > 100


def test_a_job_finds_its_identity(desk: Desk) -> None:
    done = desk.submit("-o", "out", "--comment=mine", desk.script("env | grep RELUME"))
    assert re.fullmatch(r"Submitted batch job \d+\n", done.stdout)
    job_id = done.stdout.split()[-1]
    job = desk.ended(job_id)
    assert (job["JobState"], job["Requeue"], job["Comment"]) == ("COMPLETED", "1", "mine")
    identity = desk.identity(job_id)
    out = (desk.home / "out").read_text()
    assert f"RELUME_RUN_ID={identity['run_id']}" in out and identity["token"] not in out
    assert identity["registered"] and desk.controller.registrations[0]["slurm_job_id"] == job_id


@pytest.mark.parametrize("how", ["option", "variable", "directive"])
def test_export_none_keeps_its_meaning_but_for_our_names(desk: Desk, how: str) -> None:
    header = "#SBATCH --export=NONE" if how == "directive" else ""
    script = desk.script('/usr/bin/env >out; srun /bin/sh -c "echo in-step=$RELUME_RUN_ID"', header)
    option = ["--export=NONE"] if how == "option" else []
    environ = {"SBATCH_EXPORT": "NONE"} if how == "variable" else {}
    done = desk.submit("--parsable", "-o", "step", *option, script, MINE="kept-out", **environ)
    desk.ended(done.stdout.strip())
    out = (desk.home / "out").read_text()
    assert "MINE=" not in out and "RELUME_IDENTITY=" in out
    assert f"in-step={desk.identity(done.stdout.strip())['run_id']}" in (desk.home / "step").read_text()


def test_an_export_file_keeps_its_meaning_but_for_our_names(desk: Desk) -> None:
    (desk.home / "vars").write_bytes(b"A=from-file\0")
    done = desk.submit("--parsable", "--export-file", "vars", desk.script("/usr/bin/env >out"), MINE="kept-out")
    desk.ended(done.stdout.strip())
    out = (desk.home / "out").read_text()
    assert "MINE=" not in out and "A=from-file" in out
    assert f"RELUME_RUN_ID={desk.identity(done.stdout.strip())['run_id']}" in out


def test_no_requeue_in_the_script_is_respected(desk: Desk) -> None:
    done = desk.submit("--parsable", desk.script("true", "#SBATCH --no-requeue"))
    assert desk.job(done.stdout.strip())["Requeue"] == "0" and "--requeue" not in done.stderr


def test_standard_input_and_wrap(desk: Desk) -> None:
    script = "#!/bin/sh\n#RELUME name=from-a-pipe\necho piped $RELUME_RUN_ID\n"
    piped = desk.submit("--parsable", "-o", "piped", stdin=script).stdout.strip()
    wrapped = desk.submit("--parsable", "-o", "wrapped", "--wrap=#RELUME name=wrapped-one\necho wrapped $RELUME_RUN_ID")
    for job_id, name in ((piped, "piped"), (wrapped.stdout.strip(), "wrapped")):
        desk.ended(job_id)
        assert (desk.home / name).read_text() == f"{name} {desk.identity(job_id)['run_id']}\n"
    assert {identity["name"] for identity in desk.identities} == {"from-a-pipe", "wrapped-one"}
