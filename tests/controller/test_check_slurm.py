"""manage.py check_slurm: what it prints, stores and returns; and how the controller asks by itself."""

import json
import os
from io import StringIO
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command

from controller import clock, tasks, wiring
from controller import environment as env
from controller.clock import aware
from controller.decision import actions, rights
from controller.errors import SlurmUnavailable
from controller.models import Action, Cluster, Incident
from controller.snapshot import rights as kept
from controller.snapshot.cluster_facts import cluster_facts
from tests.builders import T0
from tests.decision.quiet import POLICY

pytestmark = [pytest.mark.db, pytest.mark.django_db]

GRANT = "sacctmgr -i modify user where name=relume set AdminLevel=Administrator"
RULE = 'relume ALL=(slurm) NOPASSWD: /usr/bin/scontrol ^update …$\nSLURM_NODE_RUN_AS="sudo -n -u slurm"'
PUT = "controller.management.commands.check_slurm.find_rights"


def found(**lacking: str) -> dict[str, Any]:
    """All there, but for `lacking`: name and what is said instead of yes."""
    capabilities: dict[str, dict[str, Any]] = {}
    for name in rights.CAPABILITIES:
        capabilities[name] = {"may": rights.YES, "who": "relume", "proof": f"proof of {name}"}
        if name in lacking:
            less = {"may": lacking[name], "without": "less is done", "grant": GRANT, "or": [RULE]}
            capabilities[name] |= less
    me = {"user": "relume", "through": ""}
    return {
        "at": T0,
        "cluster": "lab",
        "slurm_version": "22.05.8",
        "identities": {"reader": me, "jobs": me, "nodes": {"user": "slurm", "through": "sudo -n -u slurm"}},
        "capabilities": capabilities,
        "facts": [{"name": "KillWait", "value": "30 sec", "note": "ranks that ignore SIGTERM …", "ok": True}],
        "unsupported": [],
    }


def check(monkeypatch: pytest.MonkeyPatch, answer: Any, *options: str) -> tuple[int, str]:
    """Exit code and what was printed."""

    def ask() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(PUT, ask)
    out = StringIO()
    try:
        call_command("check_slurm", *options, stdout=out, stderr=StringIO())
    except SystemExit as ended:
        return int(str(ended.code)), out.getvalue()
    return 0, out.getvalue()


def test_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = check(monkeypatch, found())
    assert code == 0 and text.splitlines()[-1] == "all there"
    assert "cluster lab, Slurm 22.05.8: reads as relume, changes jobs as relume, changes nodes as slurm (sudo" in text
    assert "KillWait" in text and "grant it:" not in text


def test_what_is_missing_is_printed_with_what_grants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = check(monkeypatch, found(update_nodes=rights.NO, reserve=rights.UNKNOWN))
    assert code == 1
    lines = [line.strip() for line in text.splitlines()]
    at = lines.index("NO   drain and resume nodes           proof of update_nodes")
    assert lines[at + 1 : at + 5] == [
        "without it: less is done",
        f"grant it: {GRANT}",
        "or:       relume ALL=(slurm) NOPASSWD: /usr/bin/scontrol ^update …$",
        'SLURM_NODE_RUN_AS="sudo -n -u slurm"',
    ]
    assert "?    make reservations" in text and lines[-1] == "degraded in 2 points"


@pytest.mark.parametrize(
    "changes",
    [
        {"facts": [{"name": "clock", "value": "+100 s", "note": "synchronise the clocks", "ok": False}]},
        {"unsupported": ["unsupported: federation: …; …"]},
        {"capabilities": found(jobs_of_others=rights.SOME)["capabilities"]},
    ],
    ids=["a bad setting", "not supported", "a right over some"],
)
def test_all_that_makes_it_less_is_degraded_and_says_so(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    code, text = check(monkeypatch, found() | changes, "--json")
    told = json.loads(text)
    assert code == 1 and len(told["degraded"]) == 1 and told["stored"] is True
    code, text = check(monkeypatch, found() | changes)
    assert code == 1 and text.splitlines()[-1] == "degraded in 1 point"
    assert told["degraded"][0].split(": ")[-1] in text


def test_the_result_is_stored_for_the_next_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, found(update_nodes=rights.NO), "--json")
    facts = cluster_facts(Cluster.objects.get(name="lab"), T0, POLICY)
    assert rights.may(facts.rights, rights.UPDATE_NODES) is False
    assert rights.grant(facts.rights, rights.UPDATE_NODES) == GRANT
    assert facts.job_user == "relume" and "proof" not in json.dumps(facts.to_json())
    check(monkeypatch, found())
    facts = cluster_facts(Cluster.objects.get(name="lab"), T0, POLICY)
    assert rights.may(facts.rights, rights.UPDATE_NODES) is True


def test_slurm_away_is_69_and_changes_nothing_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, found(update_nodes=rights.NO))
    with pytest.raises(CommandError, match="Slurm does not answer: timed out") as caught:
        check(monkeypatch, SlurmUnavailable("timed out", outcome_unknown=False))
    assert caught.value.returncode == 69
    assert rights.may(Cluster.objects.get().rights, rights.UPDATE_NODES) is False


def test_the_in_memory_slurm_has_no_rights_to_find(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.SLURM_ADAPTER = "fake:/tmp/nowhere.json"
    assert wiring.find_rights() is None
    with pytest.raises(CommandError, match="in-memory") as caught:
        check(monkeypatch, None)
    assert caught.value.returncode == 2


def test_started_by_root_it_asks_as_the_workers_user(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[tuple[str, Any]] = []
    monkeypatch.setenv("RELUME_WORKER_USER", "nobody")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for name in ("setgroups", "setgid", "setuid"):
        monkeypatch.setattr(os, name, lambda value, name=name: became.append((name, value)))
    assert check(monkeypatch, found())[0] == 0
    assert [name for name, _ in became] == ["setgroups", "setgid", "setuid"], "in this order, or the last forbids them"
    assert became[-1] == ("setuid", 65534) and os.environ["USER"] == "nobody"


# the controller itself


def test_asked_at_the_start_and_then_seldom() -> None:
    cluster = Cluster.objects.create(name="lab")
    assert kept.due(cluster, T0)
    assert kept.refresh(cluster, found, T0)
    cluster.refresh_from_db()
    assert not kept.due(cluster, T0 + kept.EVERY_S - 1) and kept.due(cluster, T0 + kept.EVERY_S)
    assert kept.due(cluster, T0 - 60), "a clock that went back"


def test_a_slurm_that_does_not_answer_is_asked_again_in_a_while_and_what_is_known_stays() -> None:
    cluster = Cluster.objects.create(name="lab", rights=found(reserve=rights.NO))

    def away() -> dict[str, Any]:
        raise SlurmUnavailable("timed out", outcome_unknown=False)

    late = T0 + kept.EVERY_S
    assert not kept.refresh(cluster, away, late)
    cluster.refresh_from_db()
    assert rights.may(cluster.rights, rights.RESERVE) is False
    assert not kept.due(cluster, late + kept.RETRY_S - 1) and kept.due(cluster, late + kept.RETRY_S)


def test_another_cluster_s_rights_are_not_taken_for_ours() -> None:
    cluster = Cluster.objects.create(name="other")
    assert not kept.refresh(cluster, found, T0) and "capabilities" not in Cluster.objects.get().rights


def test_actions_that_wait_go_first(make_job: Any) -> None:
    job = make_job()
    incident = Incident.objects.create(
        cluster=job.cluster, training_job=job, cause="node_lost", summary="s", reason="r", confidence=1.0,
        budget="none", detected_at=aware(T0), state="acting",
    )  # fmt: skip
    row = {"kind": actions.REQUEUE, "target": "7", "order": 1, "created_at": aware(T0), "due_at": aware(T0)}
    action = Action.objects.create(incident=incident, key="k", state="ready", expires_at=aware(T0 + 600), **row)
    assert not kept.due(job.cluster, T0)
    Action.objects.filter(pk=action.pk).update(state="done")
    assert kept.due(job.cluster, T0)


def test_the_task_asks_for_clusters_that_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(wiring, "find_rights", lambda: asked.append("asked") or {**found(), "at": clock.now()})
    Cluster.objects.create(name="lab")
    tasks.check_rights()
    tasks.check_rights()
    assert len(asked) == 1
    Cluster.objects.update(rights={"at": clock.now() - kept.EVERY_S})
    tasks.check_rights()
    assert len(asked) == 2


# credentials


def test_a_prefix_is_read_strictly_and_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.run_as("SLURM_JOB_RUN_AS") is None
    monkeypatch.setenv("SLURM_JOB_RUN_AS", "sudo -n -u nobody")
    read = env.run_as("SLURM_JOB_RUN_AS")
    assert read is not None and (read.user, read.argv) == ("nobody", ("sudo", "-n", "-u", "nobody"))
    for wrong, says in {"sudo -u nobody": "expected sudo -n", "sudo -n -u no-such-user": "there is no user"}.items():
        monkeypatch.setenv("SLURM_JOB_RUN_AS", wrong)
        with pytest.raises(ImproperlyConfigured, match=f"SLURM_JOB_RUN_AS=.*{says}"):
            env.run_as("SLURM_JOB_RUN_AS")


def test_jobs_and_nodes_may_be_changed_as_somebody_else(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    monkeypatch.setenv("SLURM_JOB_RUN_AS", "sudo -n -u nobody")
    settings.SLURM_JOB_RUN_AS = env.run_as("SLURM_JOB_RUN_AS")
    who = wiring.identities()
    assert (who.jobs.user, who.nodes.user, who.reader.user) == ("nobody", who.login, who.login)
    assert who.jobs.runner.run_as == ("sudo", "-n", "-u", "nobody") and who.nodes.runner.run_as == ()
    settings.SLURM_ADAPTER = "cli"
    assert wiring.site().slurm_user == "nobody", "whose hold a job's hold would be"
