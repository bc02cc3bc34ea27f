"""`relume sbatch` around the installed sbatch, and `relume run` under a real srun on several nodes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.cluster import Lab
from tests.worker_hooks.controller_double import ControllerDouble
from worker_hooks.cli.sbatch_options import LONG, NONE, OPTIONAL, REQUIRED, SHORT

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).parents[2]
PYTHON = "/usr/bin/python3"
CALL = "import sys; from worker_hooks.cli.main import main; sys.exit(main())"


def eventually(what: Callable[[], Any], seconds: float = 40) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.1)
    return found


@dataclass
class Desk:
    """The owner's account on the head node: worker_hooks, scripts, a controller that listens to the nodes."""

    lab: Lab
    home: Path
    controller: ControllerDouble

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(self.home / "site"),
            "RELUME_URL": self.controller.url,
            "RELUME_API_TOKEN": "user-token",
            "RELUME_STATE_DIR": str(self.home / "state"),
        }

    def submit(
        self, *argv: str, stdin: str = "", check: bool = True, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        command = [PYTHON, "-c", CALL, "sbatch", *argv]
        return self.lab.run(*command, stdin=stdin, cwd=self.home, env={**self.environ, **environ}, check=check)

    def script(self, body: str, header: str = "") -> str:
        path = self.home / "job.sh"
        path.write_text(f"#!/bin/sh\n{header}\n{body}\n", encoding="utf-8")
        return str(path)

    def job(self, job_id: str) -> dict[str, str]:
        text = self.lab.run("scontrol", "show", "job", "-o", job_id).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def ended(self, job_id: str) -> dict[str, str]:
        states = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL")
        return eventually(lambda: job if (job := self.job(job_id))["JobState"] in states else None)

    def identity(self, job_id: str) -> dict[str, Any]:
        found = [json.loads(path.read_text()) for path in (self.home / "state" / "identities").glob("*.json")]
        (identity,) = [item for item in found if item["slurm_job_id"] == job_id]
        return identity


@pytest.fixture
def desk(lab: Lab) -> Iterator[Desk]:
    home = lab.dir / "home" / "owner"
    shutil.copytree(
        REPOSITORY / "worker_hooks", home / "site" / "worker_hooks", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(REPOSITORY / "tests" / "worker_hooks" / "fake_rank.py", home / "fake_rank.py")
    made = Desk(lab, home, ControllerDouble(lab.management_host))
    yield made
    made.controller.away()
    for name in ("site", "state", "ck"):
        shutil.rmtree(home / name, ignore_errors=True)
    assert not made.controller.conflicts


# --- the wrapper ------------------------------------------------------------------------------------------------


def help_options(lab: Lab) -> dict[str, str]:
    """Long option to its letter ("" without), as the installed sbatch lists them."""
    text = lab.run("sbatch", "--help").stdout
    found = re.findall(r"^\s+(?:-(\w),? )?\s*--([a-z][a-z-]+)", text, re.MULTILINE)
    return {name: letter for letter, name in found}


def installed_arity(lab: Lab, name: str) -> int:
    """Asked of sbatch itself: does `--help` after the option still count, and may the option have a value?"""
    follow = lab.run("sbatch", f"--{name}", "--help", check=False, timeout=10)
    if "Usage: sbatch" not in follow.stdout:
        return REQUIRED
    attached = lab.run("sbatch", f"--{name}=1", "--help", check=False, timeout=10)
    return NONE if "doesn't allow an argument" in attached.stderr else OPTIONAL


def test_the_option_table_agrees_with_the_installed_sbatch(lab: Lab) -> None:
    listed = help_options(lab)
    assert len(listed) > 80
    wrong = {}
    for name, letter in listed.items():
        if letter and SHORT.get(letter) != name:
            wrong[name] = f"-{letter} is {SHORT.get(letter)}"
        if name in ("help", "usage", "version"):
            continue
        if LONG.get(name) != (asked := installed_arity(lab, name)):
            wrong[name] = f"table {LONG.get(name)}, sbatch {asked}"
    assert wrong == {}


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


def test_no_requeue_in_the_script_is_respected(desk: Desk) -> None:
    done = desk.submit("--parsable", desk.script("true", "#SBATCH --no-requeue"))
    assert desk.job(done.stdout.strip())["Requeue"] == "0" and "--requeue" not in done.stderr


def test_what_sbatch_refuses_comes_back_as_it_is(desk: Desk) -> None:
    argv = ("--nodes=many", desk.script("true"))
    plain = desk.lab.run("sbatch", *argv, check=False)
    ours = desk.submit("-Q", *argv, check=False)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout) != (0, "")
    assert ours.stderr == plain.stderr != ""


def test_waiting_gives_the_jobs_exit_code(desk: Desk) -> None:
    assert desk.submit("--wait", desk.script("exit 7"), check=False).returncode == 7


def test_standard_input_wrap_and_array(desk: Desk) -> None:
    piped = desk.submit("--parsable", "-o", "piped", stdin="#!/bin/sh\necho piped $RELUME_RUN_ID\n").stdout.strip()
    wrapped = desk.submit("--parsable", "-o", "wrapped", "--wrap=echo wrapped $RELUME_RUN_ID").stdout.strip()
    array = desk.submit("--parsable", "-a", "0-1", "-o", "array%a", desk.script("echo id=$RELUME_RUN_ID"))
    for job_id, name in ((piped, "piped"), (wrapped, "wrapped")):
        desk.ended(job_id)
        assert (desk.home / name).read_text() == f"{name} {desk.identity(job_id)['run_id']}\n"
    desk.ended(array.stdout.strip())
    assert (desk.home / "array1").read_text() == "id=\n"
    assert "tracked from Slurm's side" in array.stderr


def test_a_het_job_is_one_job_with_components(desk: Desk) -> None:
    """Held: het jobs are started by the backfill scheduler only, half a minute later."""
    job_id = desk.submit("--parsable", "-H", "-n1", ":", "-n1", "--wrap=true").stdout.strip()
    job = desk.job(job_id)
    assert job["HetJobId"] == job_id and job["HetJobIdSet"] and job["Requeue"] == "1"
    assert desk.identity(job_id)["registered"]


def test_a_test_only_submission_submits_nothing(desk: Desk) -> None:
    desk.submit("--test-only", desk.script("true"))
    assert not (desk.home / "state").exists() and desk.controller.registrations == []


# --- the agent --------------------------------------------------------------------------------------------------


def train(desk: Desk, nodes: str, count: int, **plan: Any) -> str:
    """Submit a job of fake ranks, two on each node; its id."""
    plan_text = json.dumps(plan).replace('"', '\\"')
    body = (
        f"exec srun --ntasks-per-node=1 --kill-on-bad-exit=1 {PYTHON} -c '{CALL}' run --ranks 2 --interface eth1 "
        f'-- {PYTHON} {desk.home}/fake_rank.py "{plan_text}"'
    )
    argv = ["--parsable", f"-N{count}", f"-w{nodes}", "-o", "train", "--relume-checkpoint-root=ck", desk.script(body)]
    return desk.submit(*argv).stdout.strip()


def last_message(desk: Desk, node: str, generation: int = 1) -> dict[str, Any] | None:
    found = [m for m in desk.controller.messages if (m["node"], m["generation"]) == (node, generation)]
    return found[-1] if found else None


def test_two_nodes_train_to_the_end(desk: Desk) -> None:
    job = desk.ended(train(desk, "gpu[1-2]", 2, steps=40))
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), (desk.home / "train").read_text()
    for rank in range(4):
        assert desk.controller.values(rank=rank) == list(range(1, 41))
    first, second = last_message(desk, "gpu1"), last_message(desk, "gpu2")
    assert first is not None and second is not None
    assert first["agent"]["leader"] and not second["agent"]["leader"]
    assert second["job"]["nodes"] == "gpu[1-2]" and second["job"]["user"] == desk.lab.users["owner"]
    assert second["agent"]["addresses"] == {
        "management": desk.lab.state.node(2).management,
        "training": desk.lab.state.node(2).training,
    }


def test_a_crashed_rank_ends_the_step_on_every_node(desk: Desk) -> None:
    job = desk.ended(train(desk, "gpu[1-2]", 2, steps=5, end="signal:11", only=3))
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "75:0")
    ends = {event["rank"]: event["data"] for event in desk.controller.events("rank_exited")}
    assert ends[3] == {"exit_code": None, "signal": 11}
    assert ends[0]["torn_down"] and ends[1]["torn_down"] and ends[2]["torn_down"]


def test_the_surviving_agent_probes_a_dead_host(desk: Desk) -> None:
    train(desk, "gpu[1-2]", 2, steps=1, end="hang")
    peer = eventually(lambda: last_message(desk, "gpu2"))
    eventually(lambda: last_message(desk, "gpu1"))
    target = {"node": "gpu2", "address": peer["agent"]["addresses"]["management"], "port": peer["agent"]["probe_port"]}
    desk.controller.instructions = [{"kind": "probe", "id": "alive", "targets": [target]}]
    eventually(lambda: any(p["id"] == "alive" and p["outcome"] == "open" for p in desk.controller.of_kind("probe")))
    desk.lab.kill_node(2)
    desk.controller.instructions = [{"kind": "probe", "id": "dead", "targets": [target]}]
    (answer,) = eventually(lambda: [p for p in desk.controller.of_kind("probe") if p["id"] == "dead"])
    assert answer["outcome"] in ("timeout", "unreachable")


def test_a_requeue_is_the_next_generation_of_the_same_run(desk: Desk) -> None:
    job_id = train(desk, "gpu[1-2]", 2, steps=10, end="hang")
    eventually(lambda: desk.controller.values(rank=3) == list(range(1, 11)))
    desk.lab.run("scontrol", "requeue", job_id)
    eventually(lambda: desk.job(job_id)["JobState"] == "PENDING")
    eventually(lambda: desk.controller.events("stopped", generation=1))
    desk.lab.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")
    message = eventually(lambda: last_message(desk, "gpu2", generation=2))
    assert message["job"]["restart_count"] == 1
    assert {message["run_id"] for message in desk.controller.messages} == {desk.identity(job_id)["run_id"]}
    desk.lab.run("scancel", job_id)
    eventually(lambda: desk.controller.events("stopped", generation=2))
