"""An old incident decided again: the same facts give the same decision, and what differs is said field by field."""

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from controller.models import Decision, Incident
from controller.replay import FIELDS, replay
from tests.scenarios.world import World

pytestmark = pytest.mark.db


@pytest.fixture
def world(db: None, monkeypatch: pytest.MonkeyPatch) -> World:
    """A node was lost, held, and the job requeued without it."""
    made = World()
    made.start()
    made.kill_host("gpu2")
    made.run(10)
    monkeypatch.setattr("controller.management.commands.replay_incident.policy", lambda: made.policy)
    return made


def command(*args: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("replay_incident", *args, stdout=out)
    except SystemExit as ended:
        return int(str(ended.code)), out.getvalue()
    return 0, out.getvalue()


def decision() -> Decision:
    return Incident.objects.get().decisions.order_by("pk")[0]


def test_the_same_facts_give_the_same_decision(world: World) -> None:
    incident = Incident.objects.get()
    code, text = command(str(incident.pk))
    assert code == 0 and "the same decision" in text
    assert "  hold:       gpu2\n" in text and "  exclude:    gpu2\n" in text and "  requeue:    yes\n" in text
    code, said = command(str(incident.pk), "--json")
    told = json.loads(said)
    assert code == 0 and told["same"] and told["differences"] == []
    assert tuple(told["then"]) == tuple(told["now"]) == FIELDS
    assert told["then"]["proof"] and told["then"] == told["now"]


def test_what_differs_is_said_field_by_field(world: World) -> None:
    Incident.objects.update(suspects=["gpu1", "gpu2"], confidence=0.3, budget="user")
    code, text = command(str(Incident.objects.get().pk))
    assert code == 3
    assert "DIFFERENT in suspects, budget, confidence" in text
    assert "    - gpu1\n" in text and "    1 the same\n" in text
    assert "    then: user\n    now:  infrastructure\n" in text


def test_evidence_that_came_later_is_no_difference(world: World) -> None:
    incident = Incident.objects.get()
    row = incident.evidence.order_by("number").last()
    assert row is not None
    row.pk, row.number, row.raw, row.late = None, 99, "NVRM: Xid 79", True
    row.save()
    assert replay(incident.pk, world.policy).differences == []


def test_facts_that_would_open_nothing_now_are_said_as_such(world: World) -> None:
    row = decision()
    row.facts["attempt"]["agents"][1]["received_at"] = row.at.timestamp()
    row.save()
    found = replay(Incident.objects.get().pk, world.policy)
    assert {"cause", "suspects", "hold", "requeue", "proof"} <= set(found.differences)
    assert (found.now["cause"], found.now["suspects"], found.now["requeue"]) == ("", [], False)


def test_facts_of_an_older_version_still_decode(world: World) -> None:
    """What it did not know takes its default."""
    row = decision()
    for name in ("evidence", "evidence_left_out", "rank_nodes", "addresses", "gpus", "last_fault", "attempts_before"):
        row.facts.pop(name, None)
    row.facts["something_of_a_newer_version"] = 1
    row.save()
    assert replay(Incident.objects.get().pk, world.policy).now["suspects"] == ["gpu2"]


def test_another_policy_can_be_tried(world: World, tmp_path: Path) -> None:
    number = str(Incident.objects.get().pk)
    strict = tmp_path / "policy.toml"
    strict.write_text("[ceilings]\nmax_nodes_out = 0\n")
    code, text = command(number, "--policy", str(strict))
    assert code == 3 and "    - gpu2\n" in text.partition("  hold\n")[2]
    strict.write_text("[ceilings]\nno_such_key = 1\n")
    with pytest.raises(CommandError, match="no_such_key") as wrong:
        call_command("replay_incident", number, "--policy", str(strict))
    assert wrong.value.returncode == 2


def test_what_cannot_be_decided_again_says_why(world: World) -> None:
    with pytest.raises(CommandError, match="there is no incident 12345") as missing:
        call_command("replay_incident", "12345")
    assert missing.value.returncode == 1
    row = decision()
    row.facts = {}
    row.save()
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("replay_incident", str(Incident.objects.get().pk))
    Decision.objects.all().delete()
    with pytest.raises(CommandError, match="has no decision"):
        call_command("replay_incident", str(Incident.objects.get().pk))
