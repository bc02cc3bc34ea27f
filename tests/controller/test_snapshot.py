"""Slurm's view into rows, and rows into facts."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controller.clock import aware
from controller.decision.facts import Spent
from controller.decision.policy import Policy
from controller.models import AgentReport, Cluster, Exclusion, Incident, Node, NodeCheck, TrainingJob
from controller.slurm.fake import FakeSlurm
from controller.slurm.reach import Target
from controller.snapshot import past, probing
from controller.snapshot.facts import read_facts
from controller.snapshot.poll import due, poll
from tests.builders import T0

pytestmark = pytest.mark.db
Maker = Callable[..., Any]
POLICY = Policy(mode="act")


@pytest.fixture
def slurm() -> FakeSlurm:
    """Two nodes with one job of ada's, number 1, at T0."""
    made = FakeSlurm(lambda: aware(T0))
    made.add_nodes("gpu1", "gpu2")
    made.submit(num_nodes=2)
    made.tick()
    return made


@pytest.fixture
def cluster(db: None) -> Cluster:
    return Cluster.objects.create(name="fake", watching_since=aware(T0 - 100))


def test_a_view_becomes_rows(slurm: FakeSlurm, cluster: Cluster, make_job: Maker) -> None:
    job = make_job(cluster=cluster, slurm_job_id="1")
    assert poll(cluster, slurm, T0)
    node = Node.objects.get(name="gpu1")
    assert (node.base_state, node.jobs, node.port) == ("ALLOCATED", ["1"], 6818)
    job.refresh_from_db()
    assert job.owner_confirmed and job.view["base"] == "RUNNING" and job.view["nodes"] == ["gpu1", "gpu2"]
    assert (cluster.nodes_total, cluster.slurm_version, cluster.next_job_id) == (2, "22.05.8", 2)


def test_only_what_changed_is_written(slurm: FakeSlurm, cluster: Cluster) -> None:
    poll(cluster, slurm, T0)
    slurm.drain_node("gpu2", "fan")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        poll(cluster, slurm, T0)
    (written,) = [q["sql"] for q in queries if q["sql"].startswith('INSERT INTO "controller_node" ')]
    assert "gpu2" in written and "gpu1" not in written
    assert Node.objects.get(name="gpu2").flags == ["DRAIN"]


def test_a_failed_read_changes_nothing_but_the_error(slurm: FakeSlurm, cluster: Cluster) -> None:
    poll(cluster, slurm, T0)
    slurm.stop_answering()
    assert not poll(cluster, slurm, T0 + 2)
    cluster.refresh_from_db()
    assert cluster.view_at == aware(T0) and "SlurmUnavailable" in cluster.view_error
    assert Node.objects.get(name="gpu1").base_state == "ALLOCATED"
    assert not due(cluster, T0 + 3) and due(cluster, T0 + 4)


def test_another_cluster_is_not_this_one(slurm: FakeSlurm, db: None) -> None:
    other = Cluster.objects.create(name="elsewhere")
    assert not poll(other, slurm, T0)
    assert "calls itself 'fake'" in other.view_error and Node.objects.count() == 0


def test_a_reused_job_id_is_not_the_job(slurm: FakeSlurm, cluster: Cluster, make_job: Maker) -> None:
    job = make_job(cluster=cluster, slurm_job_id="1", owner="bob")
    poll(cluster, slurm, T0)
    job.refresh_from_db()
    assert not job.owner_confirmed and job.view == {"missing": "the job id belongs to ada now"}
    (facts,), _ = read_facts(cluster, T0, POLICY)
    assert facts.slurm is None and not facts.enrolled


def test_a_job_that_left_slurm_has_not_failed(slurm: FakeSlurm, cluster: Cluster, make_job: Maker) -> None:
    make_job(cluster=cluster, slurm_job_id="1")
    poll(cluster, slurm, T0)
    with slurm.world() as world:
        world.jobs.clear()
    poll(cluster, slurm, T0)
    assert TrainingJob.objects.get().view["base"] == "RUNNING"
    (facts,), _ = read_facts(cluster, T0, POLICY)
    assert facts.slurm is None, "what Slurm does not show is unknown"


def test_facts_come_from_rows(slurm: FakeSlurm, cluster: Cluster, make_job: Maker, make_attempt: Maker) -> None:
    job = make_job(cluster=cluster, slurm_job_id="1", state="training")
    first = make_attempt(job, step=120)
    exits = [{"rank": 3, "node": "gpu2", "exit_code": 77, "signal": None, "at": T0, "meaning": "verification_failed"}]
    passed = {"outcome": "PASS", "checks": [{"name": "loss", "outcome": "PASS"}]}
    failed = {"outcome": "FAIL", "checks": [{"name": "optimizer", "outcome": "FAIL"}]}
    checks = {"0": {"before_first_step": passed, "replay": passed}, "1": {"before_first_step": failed}}
    second = make_attempt(job, 2, start_step=100, exits=exits, checks=checks)
    poll(cluster, slurm, T0)
    for attempt, node, age in ((first, "gpu1", 0.1), (second, "gpu1", 1.0), (second, "gpu2", 5.0)):
        at = aware(T0 - age)
        AgentReport.objects.create(attempt=attempt, node=node, received_at=at, sent_at=at, state="running")
    NodeCheck.objects.create(
        node=Node.objects.get(name="gpu2"),
        vantage="controller",
        address="x",
        port=1,
        asked_at=aware(T0 - 2),
        answered_at=aware(T0 - 1),
        outcome="timeout",
    )
    (facts,), spend = read_facts(cluster, T0, POLICY)
    assert facts.attempt is not None and facts.slurm is not None
    assert facts.attempt.generation == 2 and [a.node for a in facts.attempt.agents] == ["gpu1", "gpu2"]
    assert facts.attempt.exits[0].meaning == "verification_failed"
    assert (facts.attempt.checks_passed, facts.attempt.checks_failed) == (1, ("optimizer",))
    assert facts.attempt.replay_passed == 1 and facts.attempt.replay_expected
    assert facts.witnesses == ("gpu1",) and facts.controls[0] == "gpu1"
    assert [(p.vantage, p.node, p.outcome) for p in facts.probes] == [("controller", "gpu2", "timeout")]
    assert spend.nodes_total == 2 and spend.mode == "act"


def test_an_agent_is_a_witness_only_where_slurm_runs_its_job(
    cluster: Cluster, make_job: Maker, make_attempt: Maker
) -> None:
    """Agents name their own node: one that claims a foreign node could clear or accuse whomever it likes."""
    attempt = make_attempt(make_job(cluster=cluster, view={"nodes": ["gpu1"]}))
    for node in ("gpu1", "gpu2"):
        AgentReport.objects.create(
            attempt=attempt, node=node, received_at=aware(T0), sent_at=aware(T0), state="running"
        )
    (facts,), _ = read_facts(cluster, T0, POLICY)
    assert facts.witnesses == ("gpu1",)


def test_the_agents_port_is_probed_at_slurms_address(
    cluster: Cluster, make_node: Maker, make_job: Maker, make_attempt: Maker
) -> None:
    attempt = make_attempt(make_job(cluster=cluster))
    AgentReport.objects.create(
        attempt=attempt,
        node="gpu2",
        received_at=aware(T0),
        sent_at=aware(T0),
        state="running",
        addresses={"management": "192.0.2.66"},
        probe_port=4242,
    )
    node = make_node("gpu2", cluster=cluster, address="192.0.2.2", port=6818)
    assert probing.agent_doors([node]) == {"gpu2": [Target("192.0.2.2", 4242)]}


def test_a_row_that_cannot_be_understood_stops_only_its_own_job(
    cluster: Cluster, make_job: Maker, make_attempt: Maker
) -> None:
    make_attempt(make_job(run_id="tj-000000000001", cluster=cluster), checks={"0": "nonsense"})
    make_attempt(make_job(run_id="tj-000000000002", cluster=cluster))
    subjects, _ = read_facts(cluster, T0, POLICY)
    assert [subject.run_id for subject in subjects] == ["tj-000000000002"]


def test_silence_counts_from_when_we_watch(cluster: Cluster, make_job: Maker, make_attempt: Maker) -> None:
    attempt = make_attempt(make_job(cluster=cluster))
    old = aware(T0 - 500)
    AgentReport.objects.create(attempt=attempt, node="gpu1", received_at=old, sent_at=old, state="running")
    (facts,), _ = read_facts(cluster, T0, POLICY)
    assert facts.attempt is not None
    spoken = facts.attempt.agents[0]
    assert (spoken.received_at, spoken.silent_since) == (T0 - 500, T0 - 100)


def test_everybodys_drains_count(slurm: FakeSlurm, cluster: Cluster) -> None:
    slurm.drain_node("gpu2", "somebody's")
    poll(cluster, slurm, T0)
    _, spend = read_facts(cluster, T0 + 60, POLICY)
    assert spend.nodes_out == {"gpu2"} and spend.drains_last_hour == 1
    _, later = read_facts(cluster, T0 + 3700, POLICY)
    assert later.nodes_out == {"gpu2"} and later.drains_last_hour == 0


def test_the_number_of_queries_does_not_grow(cluster: Cluster, make_job: Maker, make_attempt: Maker) -> None:
    counts = []
    for number in range(3):
        make_attempt(make_job(run_id=f"tj-00000000000{number}", cluster=cluster))
        with CaptureQueriesContext(connection) as queries:
            read_facts(cluster, T0, POLICY)
        counts.append(len(queries))
    assert counts[0] == counts[1] == counts[2] <= 28


def test_what_was_spent(make_job: Maker, make_attempt: Maker) -> None:
    job = make_job()
    attempts = [make_attempt(job, 1, step=100), make_attempt(job, 2, step=100), make_attempt(job, 3, step=95)]
    charged = [past.PastIncident("process", 1, "host_oom"), past.PastIncident("infrastructure", 2, "fabric")]
    kinds = {"host_oom": 1, "fabric": 1}
    assert past.spent(charged, attempts) == Spent(infrastructure=1, process=1, same_step=2, of_kind=kinds)
    attempts[2].step = 101
    assert past.spent(charged, attempts).same_step == 0, "progress since"
    assert past.spent(charged, attempts).of_kind == {}
    unknown = past.spent([past.PastIncident("infrastructure", None, "fabric")], attempts)
    assert (unknown.same_step, unknown.of_kind) == (0, {"fabric": 1}), "no step is told: not known to be progress"
    assert Incident.objects.count() == Exclusion.objects.count() == 0
