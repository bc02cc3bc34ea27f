"""The executor: claims, order, expiry, switches, outages; and its handlers where a scenario cannot aim."""

from dataclasses import replace
from typing import Any

import pytest

from controller import commands
from controller.clock import aware
from controller.errors import RefusalKind
from controller.ledger import move
from controller.models import Action, AuditEntry, Cluster, Incident, Node, NodeHold
from controller.remediation.executor import run_actions, run_once
from controller.slurm import checked
from tests.scenarios.world import World

pytestmark = [pytest.mark.db, pytest.mark.django_db]


@pytest.fixture
def world(db: None) -> World:
    return World()


def decided(world: World, **job: Any) -> Incident:
    """gpu2 is lost, the incident is committed, nothing is carried out yet."""
    world.start(**job)
    world.kill_host("gpu2")
    while not Incident.objects.exists():
        world.tick(actions=False)
    return world.incident()


def drain_count(world: World) -> int:
    return len(world.slurm.effects("drain", "gpu2"))


def test_actions_of_an_incident_run_in_order(world: World) -> None:
    decided(world)
    assert run_once(world.site)
    assert (world.action("hold_node").state, world.action("requeue_excluding").state) == ("done", "ready")
    run_actions(world.site)
    assert set(Action.objects.exclude(kind="give_back").values_list("state", flat=True)) == {"done"}
    world.run(12)
    assert set(Action.objects.values_list("state", flat=True)) == {"done"}


def test_a_claimed_action_is_left_alone_until_its_lease_runs_out(world: World) -> None:
    decided(world)
    action = world.action("hold_node")
    move(action, "claim", reason="x", now=world.now, lease_owner="dead", lease_until=aware(world.now + 20))
    assert not run_once(world.site) and drain_count(world) == 0
    world.now += 21
    assert run_once(world.site) and drain_count(world) == 1
    assert world.action("hold_node").tries == 1


def test_a_claim_lost_in_the_middle_writes_nothing(world: World) -> None:
    decided(world)
    read = world.slurm.read_node

    class Thief:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.slurm, name)

        def read_node(self, name: str) -> Any:
            Action.objects.filter(kind="hold_node").update(lease_owner="other")
            return read(name)

    world.port = Thief()  # type: ignore[assignment]
    run_once(world.site)
    assert drain_count(world) == 0
    assert (world.action("hold_node").state, world.action("hold_node").lease_owner) == ("claimed", "other")


def test_an_old_decision_expires(world: World) -> None:
    decided(world)
    world.now += world.policy.limits.action_expires_s + 1
    run_actions(world.site)
    assert set(Action.objects.values_list("state", flat=True)) == {"expired"}
    assert world.effects() == [] and NodeHold.objects.get().state == "released"


def test_what_has_begun_is_carried_through_after_its_expiry(world: World) -> None:
    decided(world)
    world.slurm.fail_next("timeout", call="hold_job", effect="now")
    run_once(world.site)
    run_once(world.site)
    Action.objects.filter(kind="requeue_excluding").update(expires_at=aware(world.now - 1))
    world.run(10)
    assert world.action("requeue_excluding").state == "done"
    assert world.slurm_job().held == "" and world.slurm_job().base == "RUNNING"


def test_paused_waits_and_resumes(world: World) -> None:
    decided(world)
    cluster = Cluster.objects.get()
    commands.pause(cluster, who="eve", reason="maintenance", now=world.now)
    world.run(10)
    assert world.effects() == [] and world.action("hold_node").outcome == "paused: maintenance"
    commands.resume(cluster, who="eve", reason="over", now=world.now)
    world.run(15)
    assert world.incident().state == "recovering"
    assert list(AuditEntry.objects.order_by("pk").values_list("what", "who")) == [("pause", "eve"), ("resume", "eve")]


def test_observe_mode_stops_what_has_not_begun(world: World) -> None:
    decided(world)
    commands.set_mode(Cluster.objects.get(), "observe", who="eve", reason="careful", now=world.now)
    world.run(10)
    assert world.effects() == []


@pytest.mark.parametrize("call", ["read_node", "drain_node", "down_node", "read_job", "hold_job", "exclude_nodes"])
@pytest.mark.parametrize("effect", ["never", "now"])
def test_a_call_without_an_answer_is_not_an_answer(world: World, call: str, effect: Any) -> None:
    decided(world)
    world.slurm.fail_next("timeout", call=call, effect=effect)
    world.run(15)
    assert world.incident().state == "recovering"
    assert drain_count(world) == 1 and world.slurm_job().restarts == 1


@pytest.mark.parametrize("call", ["set_start_now", "release_job"])
@pytest.mark.parametrize("effect", ["never", "now", "later"])
def test_a_release_without_an_answer_is_looked_at_again(world: World, call: str, effect: Any) -> None:
    decided(world)
    world.slurm.fail_next("timeout", call=call, effect=effect, delay=1.0)
    world.run(20)
    assert world.incident().state == "recovering"
    assert (world.slurm_job().restarts, world.slurm_job().held, world.slurm_job().base) == (1, "", "RUNNING")


@pytest.mark.parametrize(("effect", "delay"), [("never", 0.0), ("now", 0.0), ("later", 3.0)])
def test_an_unanswered_requeue_is_not_sent_twice_blind(world: World, effect: Any, delay: float) -> None:
    """The host answers again, so the requeue is ours. It times out, and takes effect never, at once, or late."""
    decided(world)
    world.dark.clear()
    with world.slurm.world() as slurm:
        slurm.nodes["gpu2"].slurmd_dead_since = None
    world.slurm.fail_next("timeout", call="requeue_job", effect=effect, delay=delay)
    world.run(25)
    assert world.slurm_job().restarts == 1 and world.slurm_job().base == "RUNNING"
    assert len(world.slurm.effects("requeuehold")) == 1
    assert world.action("requeue_excluding").progress["sends"] == (2 if effect == "never" else 1)


def test_missing_rights_for_nodes_leave_the_requeue(world: World) -> None:
    decided(world)
    world.slurm.fail_next("refused", call="drain_node", refusal_kind=RefusalKind.NOT_PERMITTED)
    with world.slurm.world() as slurm:
        slurm.nodes["gpu2"].slurmd_dead_since = None
    world.dark.clear()
    world.run(15)
    assert world.action("hold_node").state == "refused" and NodeHold.objects.get().state == "released"
    assert world.slurm_job().restarts == 1 and world.slurm_job().excluded == ["gpu2"]
    assert world.incident().state == "recovering"


def test_a_job_that_slurm_forgot_is_refused_with_the_reason(world: World) -> None:
    decided(world)
    with world.slurm.world() as slurm:
        slurm.jobs.clear()
    run_actions(world.site)
    action = world.action("requeue_excluding")
    assert action.state == "refused" and "does not know job" in action.outcome
    assert world.action("notify").state == "done", "people are told all the same"


def test_a_finished_job_is_not_requeued(world: World) -> None:
    decided(world)
    world.slurm.end_job(world.job_id, "COMPLETED")
    run_actions(world.site)
    assert world.action("requeue_excluding").state == "refused"
    assert world.slurm.effects("requeuehold") == []


def test_an_unknown_node_in_an_old_exclusion_does_not_spoil_the_new_one(world: World) -> None:
    decided(world)
    action = world.action("requeue_excluding")
    action.params = {**action.params, "exclude": ["gpu2", "gone9"]}
    action.save()
    world.run(12)
    assert world.slurm_job().excluded == ["gpu2"] and world.action("requeue_excluding").state == "done"


def test_busy_is_tried_again(world: World) -> None:
    decided(world)
    world.slurm.fail_next("refused", call="drain_node", refusal_kind=RefusalKind.BUSY, times=2)
    world.run(15)
    assert world.action("hold_node").state == "done" and world.incident().state == "recovering"


def test_a_long_completing_is_waited_out(world: World) -> None:
    world.slurm._options = replace(world.slurm._options, completing=40.0)
    decided(world)
    world.run(30)
    assert world.action("requeue_excluding").state == "ready" and world.action("requeue_excluding").stage == "settle"
    world.run(25)
    progress = world.action("requeue_excluding").progress
    assert progress["settled_at"] - progress["killed_at"] >= 39
    assert world.slurm_job().base == "RUNNING"


def test_a_node_is_returned_only_when_the_drain_is_still_ours(world: World) -> None:
    decided(world)
    world.run(12)
    hold = NodeHold.objects.get()
    ask = {"who": "eve", "policy": world.policy, "now": world.now}
    with pytest.raises(commands.CommandRefused, match="say why"):
        commands.release_hold(hold, reason=" ", **ask)
    world.slurm.drain_node("gpu2", hold.slurm_reason)  # somebody drains it again, in our words
    with world.slurm.world() as slurm:
        slurm.nodes["gpu2"].reason_user = "bob"
    commands.release_hold(hold, reason="fixed", **ask)
    run_actions(world.site)
    assert world.slurm.read_node("gpu2").state.drain and world.effects("resume") == []  # type: ignore[union-attr]
    assert NodeHold.objects.get().state == "released" and "bob's" in NodeHold.objects.get().ended_reason


def test_our_own_drain_is_cleared_by_a_persons_word(world: World) -> None:
    decided(world)
    world.run(12)
    world.slurm.restore_host("gpu2")
    action = commands.release_hold(NodeHold.objects.get(), who="eve", reason="fan", policy=world.policy, now=world.now)
    assert action is not None
    run_actions(world.site)
    node = world.slurm.read_node("gpu2")
    assert node is not None and not node.state.drain and not node.state.down
    hold = NodeHold.objects.get()
    assert (hold.state, hold.ended_by) == ("released", "eve")


def test_a_drain_that_somebody_lifted_ends_our_record(world: World) -> None:
    decided(world)
    world.run(12)
    world.slurm.restore_host("gpu2")
    world.run(3)
    world.slurm.resume_node("gpu2")
    world.run(5)
    hold = NodeHold.objects.get()
    assert (hold.state, hold.ended_by) == ("released", "somebody in Slurm")


def test_a_dismissed_incident_takes_its_actions_with_it(world: World) -> None:
    incident = decided(world)
    commands.dismiss(incident, who="eve", reason="my test", now=world.now)
    run_actions(world.site)
    assert world.effects() == [] and world.incident().state == "abandoned"
    with pytest.raises(commands.CommandRefused, match="already"):
        commands.dismiss(world.incident(), who="eve", reason="again", now=world.now)


def test_approval_is_refused_when_the_agents_speak_again(world: World) -> None:
    world.set_policy(mode="approve")
    incident = decided(world)
    world.silent_agents.clear()
    world.tick(actions=False)
    with pytest.raises(commands.CommandRefused, match="speaks again"):
        commands.approve(incident, who="eve", reason="go", policy=world.policy, now=world.now)
    assert AuditEntry.objects.count() == 0


def test_an_action_that_cannot_be_put_to_slurm_is_refused_and_holds_up_nobody(world: World) -> None:
    """A name that our own checks keep from Slurm: raised, it would end every run of the actions behind it."""
    decided(world)

    class Strict:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.slurm, name)

        def read_node(self, name: str) -> Any:
            return world.slurm.read_node(checked.node(name))

    world.port = Strict()  # type: ignore[assignment]
    hold = world.action("hold_node")
    NodeHold.objects.update(node=Node.objects.create(cluster=hold.incident.cluster, name="a b", seen_at=aware(0)))
    Action.objects.filter(pk=hold.pk).update(target="a b")
    run_actions(world.site)
    assert world.action("hold_node").state == "refused"
    assert "cannot be put to Slurm: 'a b'" in world.action("hold_node").outcome
    assert world.action("requeue_excluding").state == "done"
