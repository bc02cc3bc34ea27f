"""The ledger: compare-and-set with its event row, and one subject in one transaction."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db.models import Q

from controller.clock import aware
from controller.decision.admit import Admission, admit
from controller.decision.facts import IncidentFact
from controller.decision.machine import RefusedTransition
from controller.decision.policy import Policy
from controller.decision.propose import propose
from controller.ledger import LostRace, lease, move
from controller.ledger.commit import Commit, commit
from controller.models import (
    Action,
    Cluster,
    Decision,
    Evidence,
    Exclusion,
    Incident,
    NodeHold,
    Recovery,
    StateChange,
    TrainingJob,
)
from tests.builders import T0
from tests.decision import quiet

pytestmark = pytest.mark.db
Maker = Callable[..., Any]
POLICY = Policy(mode="act")


def test_a_move_writes_column_and_event_row(make_job: Maker) -> None:
    job = make_job()
    move(job, "start", reason="it runs", now=T0 + 1, by="eve")
    job.refresh_from_db()
    assert (job.state, job.state_reason, job.state_at) == ("starting", "it runs", aware(T0 + 1))
    change = StateChange.objects.get()
    assert (change.table, change.row, change.event, change.old, change.new, change.by) == (
        "training job",
        job.pk,
        "start",
        "queued",
        "starting",
        "eve",
    )


def test_losing_the_race_changes_nothing(make_job: Maker) -> None:
    job = make_job()
    mine, theirs = TrainingJob.objects.get(), TrainingJob.objects.get()
    move(theirs, "start", reason="first", now=T0)
    with pytest.raises(LostRace):
        move(mine, "cancel", reason="second", now=T0)
    assert mine.state == "queued" and StateChange.objects.count() == 1
    job.refresh_from_db()
    assert job.state == "starting"


def test_what_the_table_refuses_is_refused(make_job: Maker) -> None:
    with pytest.raises(RefusedTransition):
        move(make_job(state="finished"), "start", reason="", now=T0)
    assert StateChange.objects.count() == 0


def test_a_further_condition_counts(make_job: Maker) -> None:
    with pytest.raises(LostRace):
        move(make_job(), "start", reason="", now=T0, where=Q(owner="bob"))


@pytest.fixture
def lost(make_cluster: Maker, make_job: Maker, make_attempt: Maker, make_node: Maker) -> Commit:
    """Rows behind `quiet.gpu2_lost()`, and the lease in hand."""
    cluster = make_cluster()
    job = make_job(run_id="tj-000000000001", state="training")
    make_attempt(job, state="running")
    for name in quiet.NODES:
        make_node(name)
    assert lease.take(cluster, "me", quiet.NOW)
    return Commit(cluster, quiet.cluster(), POLICY, "me", quiet.NOW)


def decided(sweep: Commit, **changes: Any) -> tuple[Admission, Any]:
    facts = quiet.gpu2_lost(**changes)
    return admit([propose(facts, sweep.now, sweep.policy)], sweep.cluster_facts, sweep.now, sweep.policy)[0], facts


def test_an_incident_is_committed_whole(lost: Commit) -> None:
    incident = commit(*decided(lost), lost)
    assert incident is not None and incident.state == "acting" and incident.acting_at == aware(quiet.NOW)
    assert [e.number for e in Evidence.objects.filter(incident=incident)] == list(
        range(1, 1 + Evidence.objects.count())
    )
    decision = Decision.objects.get()
    assert decision.policy_digest == POLICY.digest() and decision.code_version.startswith("0.")
    assert decision.facts["run_id"] == "tj-000000000001" and decision.outcome == "act"
    keys = list(Action.objects.order_by("order").values_list("key", "state"))
    assert keys == [
        (f"incident:{incident.pk}:hold_node:gpu2", "ready"),
        (f"incident:{incident.pk}:requeue_excluding:7", "ready"),
        (f"incident:{incident.pk}:notify:tj-000000000001", "ready"),
    ]
    hold = NodeHold.objects.get()
    assert (hold.node.name, hold.state, hold.adopted) == ("gpu2", "draining", False) and len(hold.token) == 12
    exclusion = Exclusion.objects.get()
    assert exclusion.expires_at.timestamp() == pytest.approx(quiet.NOW + POLICY.limits.exclusion_s)
    assert Recovery.objects.get().from_attempt == incident.attempt
    job = incident.training_job
    job.refresh_from_db()
    assert job.state == "recovering" and job.attempts.get().outcome == "node_lost"
    events = StateChange.objects.filter(table="incident").order_by("pk").values_list("event", flat=True)
    assert list(events) == ["diagnose", "act"]


def test_a_second_commit_of_the_same_fault_loses_and_leaves_nothing(lost: Commit) -> None:
    commit(*decided(lost), lost)
    before = StateChange.objects.count()
    with pytest.raises(LostRace):
        commit(*decided(lost), lost)
    assert Incident.objects.count() == 1 and StateChange.objects.count() == before and Action.objects.count() == 3


def test_a_node_that_slurm_forgot_is_no_half_incident(lost: Commit) -> None:
    lost.cluster.nodes.filter(name="gpu2").delete()
    with pytest.raises(LostRace):
        commit(*decided(lost), lost)
    assert Incident.objects.count() == 0 and TrainingJob.objects.get().state == "training"


def test_without_the_lease_nothing_is_committed(lost: Commit) -> None:
    Cluster.objects.update(lease_owner="other")
    with pytest.raises(LostRace):
        commit(*decided(lost), lost)
    assert Incident.objects.count() == 0


def test_a_node_held_already_keeps_its_hold(lost: Commit, make_node: Maker) -> None:
    node = lost.cluster.nodes.get(name="gpu2")
    held = {"token": "abc", "reason": "earlier", "created_at": aware(T0), "state_at": aware(T0)}
    NodeHold.objects.create(node=node, **held)
    assert commit(*decided(lost), lost) is not None
    assert NodeHold.objects.get().token == "abc"


def test_a_deferral_is_written_once(lost: Commit) -> None:
    paused = replace(lost, cluster_facts=quiet.cluster(paused=True))
    for _ in range(3):
        assert commit(*decided(paused), paused) is None
    assert Decision.objects.get().notes == ["Relume is paused"]
    assert Incident.objects.count() == 0


def test_an_abandoned_incident_takes_what_waits_with_it(lost: Commit) -> None:
    incident = commit(*decided(lost), lost)
    assert incident is not None
    live = IncidentFact(incident.pk, "acting", "node_lost", 1, 0, suspects=("gpu2",))
    cancelled = quiet.slurm_job(base="CANCELLED")
    admission, facts = decided(
        lost, incident=live, slurm=cancelled, state="recovering", attempt=quiet.attempt(state="ended")
    )
    commit(admission, facts, lost)
    incident.refresh_from_db()
    assert incident.state == "abandoned" and TrainingJob.objects.get().state == "cancelled"
    states = dict(Action.objects.values_list("kind", "state"))
    assert states == {"hold_node": "cancelled", "requeue_excluding": "cancelled", "notify": "ready"}
    assert NodeHold.objects.get().state == "released"


def test_the_lease_has_one_holder(make_cluster: Maker) -> None:
    cluster = make_cluster()
    assert lease.take(cluster, "a", T0)
    assert not lease.take(cluster, "b", T0 + 5)
    assert lease.take(cluster, "a", T0 + 5)
    assert lease.take(cluster, "b", T0 + 60), "a dead holder's lease runs out"
    assert not lease.renew(cluster, "a", T0 + 60)
    lease.give_back(cluster, "a")
    assert not lease.take(cluster, "c", T0 + 61), "only the holder gives it back"
    lease.give_back(cluster, "b")
    assert lease.take(cluster, "c", T0 + 61)
    assert lease.take(cluster, "d", T0 - 3600), "a lease from an impossible future counts as free"
