"""Commands run as another user: the prefixes there are, and the rules of sudo that let through what Relume sends."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import cast

import pytest

from controller.decision import rights
from controller.slurm import grants, run_as
from controller.slurm.cli import CliSlurm
from controller.slurm.runner import Runner
from tests.slurm.scripted import ScriptedRunner, said

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("sudo -n -u slurm", "slurm"),
        ("/usr/bin/sudo -n -u slurm", "slurm"),
        ("runuser -u relume-ops --", "relume-ops"),
        ("setpriv --reuid=slurm --regid=slurm --clear-groups", "slurm"),
        ("setpriv --reuid=slurm --regid=hpc --init-groups", "slurm"),
    ],
)
def test_prefixes(text: str, user: str) -> None:
    assert run_as.parse(text).user == user
    assert " ".join(run_as.parse(text).argv) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "slurm", "sudo -u slurm", "sudo -n", "sudo -n -u", "sudo -n -u slurm -s", "sudo -n -u -s",
        "./sudo -n -u slurm", "sudo -n -u 'a b'", "sudo -n -u $(id)", "sh -c 'scontrol'", "env X=1 sudo -n -u slurm",
        "runuser -u slurm", "setpriv --reuid=slurm --clear-groups", "sudo -n -u 'slurm",
        "setpriv --regid=slurm --reuid=slurm --clear-groups",
    ],
)  # fmt: skip
def test_other_prefixes_are_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected sudo -n -u USER|No closing quotation"):
        run_as.parse(text)


def test_behind_sudo_a_command_keeps_its_own_name() -> None:
    env = {"SLURM_CONF": "/etc/slurm/slurm.conf", "PATH": "/usr/bin"}
    assert Runner(env=env, run_as=("sudo", "-n", "-u", "slurm"))._command(["scontrol", "ping"]) == [
        "sudo", "-n", "-u", "slurm", "scontrol", "ping",
    ]  # fmt: skip
    behind = Runner(env=env, run_as=("runuser", "-u", "slurm", "--"))._command(["scontrol", "ping"])
    assert behind[:5] == ["runuser", "-u", "slurm", "--", "env"] and behind[-2:] == ["scontrol", "ping"]


# grants and facts
def test_slurm_conf_gets_through_sudo_where_it_is_set() -> None:
    asker = grants.Asker("relume", "relume", True, own_conf=True, scontrol="/opt/slurm/bin/scontrol")
    keep, rule, setting = grants.sudoers(rights.UPDATE_NODES, asker, "slurm").splitlines()
    assert keep == 'Defaults!/opt/slurm/bin/scontrol env_keep += "SLURM_CONF"'
    assert rule.startswith("relume ALL=(slurm) NOPASSWD: /opt/slurm/bin/scontrol ^update NodeName=")
    assert setting == 'SLURM_NODE_RUN_AS="sudo -n -u slurm"'
    assert grants.sudoers(rights.READ_JOBS, asker, "slurm") == ""


def test_the_sudo_rules_match_all_that_relume_sends_and_no_second_change() -> None:
    sent = ScriptedRunner({"": said("")})
    port = CliSlurm(lambda: datetime.now(UTC), cast(Runner, sent))
    port.drain_node("gpu-1.a", "relume:0a1b incident 5: Node lost: gpu1, gpu2")
    port.down_node("gpu1", "x")
    port.resume_node("gpu1")
    nodes, sent.asked[:] = list(sent.asked), []
    port.reserve_nodes("relume-1", ["gpu1", "gpu2"], user="ada", minutes=10)
    port.delete_reservation("relume-1")
    reservations, sent.asked[:] = list(sent.asked), []
    for job in ("7", "123_4", "7+1"):
        port.hold_job(job)
        port.release_job(job)
        port.requeue_job(job, hold=True)
        port.requeue_job(job, hold=False)
        port.exclude_nodes(job, ["gpu1", "gpu2"], start_time="now")
        port.exclude_nodes(job, [])
        port.set_start_now(job)
        port.set_reservation(job, "relume-1")
        port.set_reservation(job, "")
        port.update_comment(job, "a word")

    def allowed(capability: str, argv: list[str]) -> bool:
        return any(re.fullmatch(rule, " ".join(argv[1:])) for rule in grants.COMMANDS[capability])

    groups = {rights.UPDATE_NODES: nodes, rights.RESERVE: reservations, rights.JOBS_OF_OTHERS: sent.asked}
    for capability, commands in groups.items():
        for argv in commands:
            assert argv[0] == "scontrol" and allowed(capability, argv), argv
            assert not allowed(capability, [*argv, "JobId=9"]) and not allowed(capability, [*argv, "Priority=1"])
            assert [name for name in groups if allowed(name, argv)] == [capability], argv
