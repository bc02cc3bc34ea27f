"""Policy file, commands of the shell, wiring and waking."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from kombu.exceptions import OperationalError

from controller import policy_file, tasks, wiring
from controller.decision.policy import Policy, PolicyError
from controller.models import AuditEntry, Cluster, Incident
from controller.slurm.choose import Choice
from controller.slurm.cli import CliSlurm
from controller.slurm.fake import FakeSlurm
from tests.scenarios.world import World

pytestmark = [pytest.mark.db, pytest.mark.django_db]


def test_a_policy_file_is_read_and_the_mode_wins(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('mode = "act"\n[limits]\nagent_silent_s = 5\n')
    assert policy_file.load(str(path)).limits.agent_silent_s == 5.0
    assert policy_file.load(str(path), "observe").mode == "observe"
    assert policy_file.load("").values() == Policy().values()
    assert policy_file.load("").knowledge.of("xid.79")


@pytest.mark.parametrize(
    ("text", "named"),
    [("mode = 'fast'", "mode"), ("[limits]\nagent_silence = 1", "limits.agent_silence"), ("mode =", "not TOML")],
)
def test_a_wrong_policy_names_file_and_key(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=named) as caught:
        policy_file.load(str(path))
    assert str(path) in str(caught.value)
    with pytest.raises(CommandError, match=named):
        call_command("check_policy", str(path), stdout=StringIO(), stderr=StringIO())


def test_a_missing_policy_file_is_an_error() -> None:
    with pytest.raises(PolicyError, match=r"/nowhere/policy\.toml"):
        policy_file.load("/nowhere/policy.toml")


def test_check_policy_prints_what_is_in_force() -> None:
    out = StringIO()
    call_command("check_policy", stdout=out, stderr=StringIO())
    assert json.loads(out.getvalue())["limits"]["agent_silent_s"] == 3.0


def test_check_policy_prints_what_a_site_overrides(settings: Any, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('[xid.109]\nweight = "hard"\n')
    plain = policy_file.load("").digest()
    settings.RELUME_KNOWLEDGE = str(site)
    out, told = StringIO(), StringIO()
    call_command("check_policy", stdout=out, stderr=told)
    assert "knowledge" not in json.loads(out.getvalue())
    assert "1 changes\nxid.109: weight 'weak' -> 'hard'" in told.getvalue()
    changed = policy_file.load("", knowledge=str(site))
    row = changed.knowledge.of("xid.109")
    assert row and row.weight == "hard" and changed.digest() != plain
    site.write_text('[xid.109]\nweight = "heavy"\n')
    with pytest.raises(CommandError, match=r"site\.toml: xid\.109: weight: 'heavy' is none of"):
        call_command("check_policy", stdout=StringIO(), stderr=StringIO())


def test_the_adapter_is_chosen_by_the_settings(settings: Any, tmp_path: Path) -> None:
    settings.SLURM_ADAPTER = "cli"
    assert isinstance(wiring.slurm_port(), CliSlurm)
    settings.SLURM_ADAPTER = f"fake:{tmp_path / 'slurm.json'}"
    assert isinstance(wiring.slurm_port(), FakeSlurm)
    assert wiring.site().owner == wiring.site().owner


def test_the_choice_is_kept_and_made_again_when_it_could_not_be_made(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process asks for pyslurm and Slurm's version once, not at every sweep."""
    settings.SLURM_ADAPTER, settings.SLURM_CONF = "auto", "/etc/slurm/another.conf"
    now, made = [100.0], []

    def choose(wanted: str, commands: CliSlurm) -> Choice:
        made.append(Choice(commands, "command line", wanted, final=len(made) > 0))
        return made[-1]

    monkeypatch.setattr(wiring, "choose", choose)
    monkeypatch.setattr(wiring.time, "monotonic", lambda: now[0])
    assert wiring.slurm_choice() is wiring.slurm_choice() is made[0]
    now[0] += wiring.CHOOSE_AGAIN_S
    assert wiring.slurm_choice() is made[1] and made[1].reason == "auto"
    now[0] += 10 * wiring.CHOOSE_AGAIN_S
    assert wiring.slurm_choice() is made[1]


def test_waking_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from controller.celery import app

    tried = []

    def away(name: str, **options: Any) -> None:
        tried.append((name, options["retry"]))
        raise OperationalError("no broker")

    monkeypatch.setattr(app, "send_task", away)
    tasks.wake()
    assert tried == [("controller.sweep", False)]


def test_pause_from_the_shell() -> None:
    Cluster.objects.create(name="lab")
    out = StringIO()
    call_command("pause", "storage work", stdout=out)
    assert Cluster.objects.get().paused_reason == "storage work"
    call_command("pause", "over", "--resume", stdout=out)
    call_command("pause", "trial", "--mode", "observe", stdout=out)
    cluster = Cluster.objects.get()
    assert (cluster.paused_reason, cluster.mode) == ("", "observe")
    assert list(AuditEntry.objects.order_by("pk").values_list("what", flat=True)) == ["pause", "resume", "set_mode"]
    Cluster.objects.create(name="other")
    with pytest.raises(CommandError, match="lab, other"):
        call_command("pause", "which?")


def test_ticks_expire_live_in_memory_and_go_where_a_worker_listens(settings: Any) -> None:
    from controller.celery import app
    from controller.up.plan import QUEUES

    app.loader.import_default_modules()
    assert settings.CELERY_BEAT_SCHEDULER == "celery.beat:Scheduler", "no shelve file"
    for entry in settings.CELERY_BEAT_SCHEDULE.values():
        assert entry["task"] in app.tasks
        assert entry["options"]["expires"] <= 2 * entry["schedule"], "late ticks do not pile up"
        assert settings.CELERY_TASK_ROUTES[entry["task"]]["queue"] in QUEUES


def test_an_end_of_an_action_wakes_the_sweep_and_a_decision_the_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.start()
    world.kill_host("gpu2")
    monkeypatch.setattr("controller.wiring.site", lambda: world.site)
    woken: list[str] = []
    monkeypatch.setattr(tasks, "_send", woken.append)
    while not Incident.objects.exists():
        world.now += 1
        world.agents_speak()
        woken.clear()
        tasks.sweep()
    assert woken == ["controller.run_actions"]
    tasks.run_actions()
    assert woken[-1] == "controller.sweep"
    woken.clear()
    tasks.run_actions()
    assert woken == [], "nothing was done: nobody is woken, or two workers would wake each other for ever"
