"""Rights on a real Slurm: what check_slurm finds is what happens when the call is made, it leaves nothing behind, and
the lines that it prints grant what they say."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.decision import rights
from controller.decision.rights import CAPABILITIES, NO, SOME, UNKNOWN, YES
from deploy.demo import site_folder
from deploy.lab.cluster import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"  # every user may run it; the environment's may lie below a closed home
SCRIPT = "#!/bin/sh\nsleep 600\n"
# docs/admin-rights.md has the same table. Reading is free while nothing is private.
MEASURED = {
    "owner": {rights.UPDATE_NODES: NO, rights.JOBS_OF_OTHERS: NO, rights.RESERVE: NO},
    "other": {rights.UPDATE_NODES: NO, rights.JOBS_OF_OTHERS: NO, rights.RESERVE: NO},
    "operator": {rights.UPDATE_NODES: NO, rights.JOBS_OF_OTHERS: YES, rights.RESERVE: YES},
    "administrator": {rights.UPDATE_NODES: YES, rights.JOBS_OF_OTHERS: YES, rights.RESERVE: YES},
    "controller": {rights.UPDATE_NODES: YES, rights.JOBS_OF_OTHERS: YES, rights.RESERVE: YES},
    "root": {rights.UPDATE_NODES: YES, rights.JOBS_OF_OTHERS: YES, rights.RESERVE: YES},
}
PROVED_BY = {
    rights.UPDATE_NODES: {"drain", "resume"},
    rights.JOBS_OF_OTHERS: {"exclude", "hold", "release", "requeue"},
    rights.RESERVE: {"reserve", "delete"},
}


class Asking:
    """The driver, as one of the lab's users."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.code = lab.dir / "rights-code"
        shutil.copytree(ROOT / "controller", self.code / "controller", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(Path(__file__).with_name("rights_driver.py"), self.code)
        subprocess.run(["chmod", "-R", "a+rX", self.code], check=True, timeout=30)

    def __call__(self, role: str, **options: Any) -> dict[str, Any]:
        done = self.run(role, **options)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def run(self, role: str, *, before: tuple[str, ...] = (), **options: Any) -> subprocess.CompletedProcess[str]:
        argv = [PYTHON, "-B", str(self.code / "rights_driver.py"), json.dumps({"conf": self.lab.conf, **options})]
        return self.lab.run(*before, *argv, user=role, check=False, timeout=60, env={"PYTHONPATH": str(self.code)})

    def may(self, role: str, **options: Any) -> dict[str, str]:
        found = self(role, **options)["found"]["capabilities"]
        return {name: found[name]["may"] for name in CAPABILITIES}

    def grant(self, role: str, capability: str) -> str:
        line: str = self(role)["found"]["capabilities"][capability]["grant"]
        return line

    def submit(self, *options: str, user: str = "owner") -> str:
        argv = ("sbatch", "--parsable", "-N1", "-o", "/dev/null", *options)
        return self.lab.run(*argv, stdin=SCRIPT, user=user).stdout.strip()

    def sacctmgr(self, line: str) -> None:
        self.lab.run(*shlex.split(line), user="root")


@pytest.fixture(scope="module")
def asking(full_lab: Lab) -> Iterator[Asking]:
    made = Asking(full_lab)
    yield made
    shutil.rmtree(made.code)


@pytest.fixture
def a_user_again(asking: Asking) -> Iterator[None]:
    """`other` without any level, `web` unknown to accounting."""
    yield
    users = asking.lab.users
    asking.sacctmgr(f"sacctmgr -i modify user where name={users['other']} set AdminLevel=None")
    asking.lab.run("sacctmgr", "-i", "delete", "user", f"name={users['web']}", user="root", check=False)


def until_running(lab: Lab, *jobs: str) -> None:
    argv = ("squeue", "--noheader", f"--jobs={','.join(jobs)}", "--format=%T")
    for _ in range(150):
        if lab.run(*argv, user="root").stdout.split() == ["RUNNING"] * len(jobs):
            return
        time.sleep(0.2)
    raise AssertionError(f"jobs {jobs} do not run")


def test_what_is_found_is_what_happens_when_the_call_is_made(asking: Asking) -> None:
    lab, owner = asking.lab, asking.lab.users["owner"]
    # Each identity requeues a job of its own (of another user: `owner` gets one of `other`).
    theirs = {role: "other" if role == "owner" else "owner" for role in MEASURED}
    running = {role: asking.submit(user=user) for role, user in theirs.items()}
    held = {role: asking.submit("--hold", user=user) for role, user in theirs.items()}
    until_running(lab, *running.values())
    for role, expected in MEASURED.items():
        on = {"node": "gpu4", "job": held[role], "running": running[role], "owner": owner}
        answer = asking(role, act=on)
        found = answer["found"]["capabilities"]
        done = set(answer["done"])
        for name, may in expected.items():
            assert found[name]["may"] == may, (role, name, found[name])
            assert done & PROVED_BY[name] == (PROVED_BY[name] if may == YES else set()), (role, name, done)
        reading = (rights.READ_NODES, rights.READ_JOBS, rights.READ_ACCOUNTING)
        assert [found[name]["may"] for name in reading] == [YES] * 3
        assert answer["found"]["unsupported"] == []


def test_a_coordinator_may_touch_the_jobs_of_his_accounts_only(asking: Asking, a_user_again: None) -> None:
    lab, other = asking.lab, asking.lab.users["other"]
    job = asking.submit("--hold")
    account = lab.run("squeue", "--noheader", f"--jobs={job}", "--format=%a", user="root").stdout.strip()
    asking.sacctmgr(f"sacctmgr -i add coordinator account={account} names={other}")
    try:
        answer = asking("other", act={"node": "gpu4", "job": job, "running": job, "owner": other})
        found = answer["found"]["capabilities"]
        assert found[rights.JOBS_OF_OTHERS]["may"] == SOME and account in found[rights.JOBS_OF_OTHERS]["proof"]
        assert found[rights.RESERVE]["may"] == found[rights.UPDATE_NODES]["may"] == NO
        assert set(answer["done"]) == {"exclude", "hold", "release"}, "a pending job cannot be requeued"
    finally:
        asking.sacctmgr(f"sacctmgr -i delete coordinator where account={account} names={other}")


def test_private_data_hides_jobs_from_all_but_operators_and_that_is_found(asking: Asking) -> None:
    job = asking.submit("--hold")
    asking.lab.configure(PrivateData="jobs")
    seen = ("squeue", "--all", "--noheader", "--format=%A")
    for role, may in {"other": NO, "operator": YES}.items():
        assert (job in asking.lab.run(*seen, user=role).stdout.split()) == (may == YES)
        found = asking.may(role)
        assert (found[rights.READ_JOBS], found[rights.READ_ACCOUNTING]) == (may, may)


def lasting(lab: Lab) -> list[str]:
    """All that Slurm keeps, without what moves by itself."""
    show = ("nodes", "jobs", "reservations", "partitions")
    texts = [lab.run("scontrol", "--all", "-o", "show", what, user="root").stdout for what in show]
    texts.append(lab.run("sacctmgr", "-P", "show", "user", "withassoc", "withcoord", user="root").stdout)
    texts.append(lab.run("sacctmgr", "-P", "show", "reservation", user="root").stdout)
    moving = r"\b(CPULoad|FreeMem|LastBusyTime|RunTime|LastSchedEval|AccrueTime)=\S+"
    return [re.sub(moving, "", text) for text in texts]


def test_it_leaves_nothing_behind_even_when_killed_at_any_call(asking: Asking) -> None:
    job = asking.submit("-w", "gpu1")
    asking.submit("--hold")
    until_running(asking.lab, job)
    before = lasting(asking.lab)
    calls = {role: asking(role)["calls"] for role in MEASURED}
    assert min(calls.values()) >= 7
    for role in ("other", "controller"):
        for kill_at in range(1, calls[role] + 1):
            assert asking.run(role, kill_at=kill_at).returncode == -9
    assert asking.may("controller")[rights.UPDATE_NODES] == YES, "whatever was left running has been answered by now"
    assert lasting(asking.lab) == before


def test_the_printed_sacctmgr_lines_grant_what_they_say(asking: Asking, a_user_again: None) -> None:
    for role, begins in {"other": "sacctmgr -i modify user ", "web": "sacctmgr -i add user "}.items():
        for capability in (rights.JOBS_OF_OTHERS, rights.UPDATE_NODES):
            line = asking.grant(role, capability)
            assert line.startswith(begins) or capability == rights.UPDATE_NODES
            asking.sacctmgr(line)
            assert asking.may(role)[capability] == YES, line
        assert set(asking.may(role).values()) == {YES}


def test_the_printed_sudoers_lines_grant_what_they_say_and_no_more(asking: Asking, tmp_path: Path) -> None:
    """In a mount namespace with a sudoers file of its own. The identities are separate: `other` has no rights, and
    both kinds of writes go to SlurmUser through sudo."""
    lab, slurm = asking.lab, asking.lab.users["controller"]
    found = asking("other")["found"]["capabilities"]
    ways = {name: next(way for way in found[name]["or"] if "NOPASSWD" in way) for name in PROVED_BY}
    assert all(f'"sudo -n -u {slurm}"' in way for way in ways.values())
    job, running = asking.submit("--hold"), asking.submit()
    until_running(lab, running)
    prefix = {"jobs": f"sudo -n -u {slurm}", "nodes": f"sudo -n -u {slurm}"}

    def with_sudoers(*names: str, **options: Any) -> dict[str, Any]:
        file = tmp_path / "sudoers"
        lines = [line for name in names for line in ways[name].splitlines() if not line.startswith("SLURM_")]
        file.write_text("\n".join(dict.fromkeys(lines)) + "\n")
        file.chmod(0o440)
        become = f"setpriv --reuid={lab.users['other']} --regid={lab.users['other']} --clear-groups"
        enter = ("unshare", "--mount", "sh", "-c", f'mount --bind {file} /etc/sudoers && exec {become} "$@"', "sh")
        done = asking.run("root", before=enter, **prefix, **options)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    nodes_only = with_sudoers(rights.UPDATE_NODES)["found"]["capabilities"]
    assert nodes_only[rights.UPDATE_NODES]["may"] == YES
    assert nodes_only[rights.JOBS_OF_OTHERS]["may"] == nodes_only[rights.RESERVE]["may"] == NO
    assert "NOPASSWD" in nodes_only[rights.JOBS_OF_OTHERS]["grant"], "where sudo is used, sudo is what is missing"
    on = {"node": "gpu4", "job": job, "running": running, "owner": lab.users["owner"]}
    answer = with_sudoers(*PROVED_BY, act=on)
    assert {one["may"] for one in answer["found"]["capabilities"].values()} == {YES}
    assert set(answer["done"]) == set().union(*PROVED_BY.values())


def test_the_command_as_an_administrator_types_it(asking: Asking) -> None:
    """Started by root, asked as the workers' user; with Slurm's daemons frozen as well."""
    lab = asking.lab
    site = site_folder.make(lab.dir / "rights-site", Path(sys.prefix))
    home = site.folder / "home"
    home.mkdir()
    shutil.chown(home, lab.users["controller"])

    def manage(worker: str, *argv: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "SLURM_CONF": lab.conf,
            "SLURM_ADAPTER": "cli",
            "RELUME_HOME": str(home),
            "DATABASE_URL": f"sqlite:////{str(home).lstrip('/')}/relume.sqlite3",
            "RELUME_WORKER_USER": lab.users[worker],
            **site.environment,
        }
        return subprocess.run(
            [site.python, site.code / "manage.py", *argv],
            env=environment, cwd=site.code, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip

    def check(worker: str) -> tuple[int, dict[str, Any]]:
        done = manage(worker, "check_slurm", "--json")
        return done.returncode, json.loads(done.stdout) if done.stdout else {}

    migrated = manage("controller", "migrate", "-v0")
    assert migrated.returncode == 0, migrated.stderr
    for path in home.iterdir():
        shutil.chown(path, lab.users["controller"])
    code, told = check("controller")
    assert (code, told["stored"], told["degraded"]) == (0, True, [])
    assert told["identities"]["nodes"]["user"] == lab.users["controller"]
    code, told = check("other")
    assert (code, told["stored"]) == (1, False), "somebody else's database"
    assert told["capabilities"][rights.UPDATE_NODES]["may"] == NO
    lab.freeze_slurmdbd()
    code, told = check("controller")
    assert code == 1 and told["capabilities"][rights.READ_ACCOUNTING]["may"] == UNKNOWN
    assert told["capabilities"][rights.UPDATE_NODES]["may"] == YES, "slurmctld does not need its database for that"
    lab.freeze_slurmdbd(False)
    lab.freeze_slurmctld()
    assert check("controller") == (69, {})
    lab.freeze_slurmctld(False)
