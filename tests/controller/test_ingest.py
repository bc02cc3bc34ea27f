"""Messages in: what is committed and what is acked, also of a repeated, overtaken or late message."""

from typing import Any

import pytest

from controller.clock import aware
from controller.models import AgentReport, Attempt, Checkpoint, MetricChunk, TrainingJob
from tests import builders as b
from tests.controller.ingest_desk import CLOCK, NOTE, NOW, acked, kinds, post
from worker_hooks.protocol.answers import decode_answer

pytestmark = pytest.mark.db


@pytest.fixture(autouse=True)
def quiet_world(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The controller's clock stands at NOW; wakes are written down instead of sent."""
    wakes: list[str] = []
    monkeypatch.setattr(CLOCK, lambda: NOW)
    monkeypatch.setattr(NOTE, lambda: wakes.append("wake"))
    return wakes


def test_the_first_message_makes_the_attempt_and_the_report(make_job: Any) -> None:
    job = make_job()
    response = post(b.message(b.event(1, "agent_started"), b.losses(2, [9, 10, 11])))
    answer = decode_answer(response.json())
    attempt, report = Attempt.objects.get(), AgentReport.objects.get()
    assert (answer.acked, answer.server_time, answer.pace_s, answer.instructions) == (2, NOW, 1.0, ())
    assert (attempt.generation, attempt.state, attempt.nodes, attempt.world_size) == (1, "pending", ["gpu1", "gpu2"], 4)
    assert (report.node, report.last_seq, report.leader, report.received_at) == ("gpu1", 2, True, aware(NOW))
    assert [r["rank"] for r in report.ranks] == [0, 1]
    job.refresh_from_db()
    assert (job.state, attempt.step, job.step) == ("queued", 11, 11)


def test_metric_points_are_kept_as_they_came(make_job: Any) -> None:
    make_job()
    record = b.losses(1, [5, 6]) | {"values": [0.5, "NaN"]}
    acked(b.message(record))
    chunk = MetricChunk.objects.get()
    assert (chunk.name, chunk.rank, chunk.first_step, chunk.last_step) == ("loss", 0, 5, 6)
    assert (chunk.steps, chunk.values, chunk.times) == ([5, 6], [0.5, "NaN"], record["times"])


def test_a_repeated_message_counts_once(make_job: Any) -> None:
    make_job()
    body = b.message(b.losses(1, [1]), b.verification(2), b.event(3, "rank_exited", 0, exit_code=1, signal=None))
    assert [acked(body), acked(body)] == [3, 3]
    attempt = Attempt.objects.get()
    assert (MetricChunk.objects.count(), len(attempt.exits)) == (1, 1)
    assert attempt.checks["0"]["before_first_step"]["records"] == 1


def test_ack_stops_at_a_gap_and_goes_on_when_it_is_filled(make_job: Any) -> None:
    make_job()
    assert acked(b.message(b.losses(1, [1]), b.losses(3, [3]))) == 1
    assert acked(b.message(b.losses(3, [3]))) == 1
    assert acked(b.message(b.losses(3, [3]), b.losses(2, [2]))) == 3
    assert sorted(MetricChunk.objects.values_list("seq", flat=True)) == [1, 2, 3]


def test_an_overtaken_heartbeat_changes_nothing_but_its_records_count(make_job: Any) -> None:
    make_job()
    acked(b.message(sent_at=b.T0 + 100, agent={"state": "ending"}))
    assert acked(b.message(b.losses(1, [4]), sent_at=b.T0 + 99)) == 1
    report = AgentReport.objects.get()
    assert (report.state, report.sent_at, report.last_seq) == ("ending", aware(b.T0 + 100), 1)


def test_a_repeated_heartbeat_does_not_make_a_silent_agent_alive(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job()
    acked(b.message())
    monkeypatch.setattr("controller.ingest.views.clock.now", lambda: NOW + 50)
    acked(b.message())
    assert AgentReport.objects.get().received_at == aware(NOW)


def test_a_clock_that_was_set_back_does_not_silence_its_agent(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job()
    acked(b.message(sent_at=b.T0 + 5000))
    monkeypatch.setattr("controller.ingest.views.clock.now", lambda: NOW + 1)
    acked(b.message(sent_at=b.T0 + 100))
    assert AgentReport.objects.get().received_at == aware(NOW + 1)


def test_event_times_are_corrected_and_the_first_one_is_kept(make_job: Any) -> None:
    make_job()
    stamps = [b.event(i + 1, name, 0, at=b.T0 + i) for i, name in enumerate(("rank_started", "rendezvous"))]
    loaded = b.event(3, "loaded", 0, at=b.T0 + 3, step=100, folder="step-00000100.g1")
    later = [b.event(4, "rendezvous", 1, at=b.T0 + 9), b.event(5, "loaded", 1, at=b.T0 + 9, step=1, folder="x")]
    acked(b.message(*stamps, loaded, *later, agent={"clock_offset_s": -20.0}))
    attempt = Attempt.objects.get()
    assert (attempt.launched_at, attempt.rendezvous_at) == (aware(b.T0 - 20), aware(b.T0 - 19))
    assert (attempt.loaded_at, attempt.start_step, attempt.start_folder) == (
        aware(b.T0 - 17),
        100,
        "step-00000100.g1",
    )


def test_without_a_measured_offset_the_last_known_one_serves(make_job: Any) -> None:
    """What a dead agent left in its spool is delivered by another, who cannot know that node's clock."""
    make_job()
    acked(b.message(agent={"clock_offset_s": 7.0}))
    acked(b.message(b.event(1, "first_step", 0, at=b.T0, step=5), agent={"clock_offset_s": None, "state": "ended"}))
    assert Attempt.objects.get().first_step_at == aware(b.T0 + 7)


def test_exits_carry_what_the_decision_core_needs(make_job: Any) -> None:
    make_job()
    killed = b.event(1, "rank_exited", 1, exit_code=None, signal=9)
    torn = b.event(2, "rank_exited", 0, exit_code=75, signal=None, torn_down=True)
    again = b.event(3, "rank_exited", 1, exit_code=0, signal=None)
    acked(b.message(killed, torn, again))
    exits = Attempt.objects.get().exits
    assert [(e["rank"], e["node"], e["exit_code"], e["signal"], e["torn_down"], e["meaning"]) for e in exits] == [
        (1, "gpu1", None, 9, False, None),
        (0, "gpu1", 75, None, True, "attempt_failed"),
    ]


def test_a_failed_verification_is_not_covered_by_a_later_pass(make_job: Any) -> None:
    make_job()
    acked(b.message(b.verification(1, stage="replay"), b.verification(2, outcome="FAIL", stage="replay")))
    acked(b.message(b.verification(3, stage="replay"), sent_at=b.T0 + 101))
    replay = Attempt.objects.get().checks["0"]["replay"]
    assert (replay["outcome"], replay["records"], replay["checks"][0]["name"]) == ("FAIL", 3, "parameters")


def test_where_a_rank_read_its_shares_is_kept_and_what_is_no_count_is_left_out(make_job: Any) -> None:
    make_job()
    told = [{"local": 1, "peer": 2, "cloud": 3}, {"local": True, "peer": -1, "shared": "4"}, "nowhere"]
    records = [
        {**b.verification(1, rank=1), "restored_from": told[0]},
        {**b.verification(2, rank=2), "restored_from": told[1]},
        {**b.verification(3, rank=3), "restored_from": told[2]},
        b.verification(4, rank=4),
    ]
    acked(b.message(*records))
    checks = Attempt.objects.get().checks
    found = {rank: stages["before_first_step"]["restored_from"] for rank, stages in checks.items()}
    assert found == {"1": {"local": 1, "peer": 2}, "2": {}, "3": {}, "4": {}}


def test_checkpoints_are_one_row_a_folder_and_quarantine_is_final(make_job: Any) -> None:
    make_job()
    good = {"step": 100, "folder": "step-00000100.g1", "state": "committed", "bytes": 5000, "blocked_s": 0.1}
    bad = good | {"state": "quarantined", "reason": "digest differs", "bytes": None}
    acked(b.message(b.record(1, "checkpoint", **good), b.record(2, "checkpoint", **bad)))
    acked(b.message(b.record(3, "checkpoint", **good), generation=1, sent_at=b.T0 + 101))
    row = Checkpoint.objects.get()
    assert (row.state, row.reason, row.bytes, row.step, row.generation) == (
        "quarantined",
        "digest differs",
        5000,
        100,
        1,
    )


def test_run_facts_logs_and_unknown_kinds(make_job: Any) -> None:
    job = make_job()
    facts = b.record(1, "run_facts", rank=0, total_steps=400, gpus=16, parameters=1000)
    log = b.event(2, "rank_log", 1, tail="x" * 50_000 + "Traceback")
    strange = [b.record(3, "hologram", depth=3), b.event(4, "levitated"), b.record(5, "hologram")]
    lost = b.event(6, "dropped", records=12, points=300, since=b.T0, until=b.T0)
    assert acked(b.message(facts, log, *strange, lost)) == 6
    job.refresh_from_db()
    assert (job.total_steps, job.gpus, job.facts["parameters"]) == (400, 16, 1000)
    assert job.facts["records_unknown"] == {"hologram": 2, "event levitated": 1}
    assert job.facts["records_lost"] == {"dropped": 12}
    tail = Attempt.objects.get().log_tail["1"]
    assert tail.endswith("Traceback") and len(tail) == 16384


def test_the_steps_of_a_training_job_follow_its_newest_attempt(make_job: Any, make_attempt: Any) -> None:
    job = make_job()
    acked(b.message(ranks=[b.rank(0, step=50), b.rank(1, step=49)]))
    acked(b.message(generation=2, ranks=[b.rank(0, step=0, phase="loading")]))
    job.refresh_from_db()
    assert job.step == 50
    acked(b.message(generation=2, sent_at=b.T0 + 102, ranks=[b.rank(0, step=40, phase="training")]))
    acked(b.message(b.losses(1, [52]), sent_at=b.T0 + 103))  # the first attempt's spool
    job.refresh_from_db()
    assert (job.step, [a.step for a in job.attempts.all()]) == (40, [52, 40])
    assert Attempt.objects.get(generation=2).step_at == aware(b.T0 + 101.9)


# --- superseded ---------------------------------------------------------------------------------------------------


def test_a_superseded_generation_with_nothing_to_deliver_is_a_conflict(make_job: Any) -> None:
    make_job()
    acked(b.message(b.losses(1, [1])))
    acked(b.message(generation=2))
    response = post(b.message(sent_at=b.T0 + 200))
    answer = decode_answer(response.json())
    assert (response.status_code, answer.acked) == (409, 1)
    assert (answer.instructions[0].kind, answer.instructions[0].body) == ("superseded", {"generation": 2})
    assert AgentReport.objects.get(attempt__generation=1).sent_at == aware(b.T0 + 100)


def test_records_of_a_superseded_generation_are_committed_but_its_heartbeat_is_not(make_job: Any) -> None:
    make_job()
    acked(b.message(ranks=[b.rank(0)]))
    acked(b.message(generation=2))
    late = b.message(b.losses(1, [7]), sent_at=b.T0 + 300, ranks=[], agent={"state": "ended"})
    response = post(late)
    assert (response.status_code, kinds(response), response.json()["acked"]) == (200, ["superseded"], 1)
    report = AgentReport.objects.get(attempt__generation=1)
    assert (report.state, report.sent_at, report.last_seq) == ("running", aware(b.T0 + 100), 1)


def test_a_generation_that_was_never_heard_of_is_delivered_after_its_successor(make_job: Any) -> None:
    make_job()
    acked(b.message(generation=3))
    assert acked(b.message(b.losses(1, [2]), generation=2)) == 1
    assert list(Attempt.objects.values_list("generation", flat=True)) == [2, 3]


def test_a_script_that_was_counted_from_outside_gets_its_agent(make_job: Any, make_attempt: Any) -> None:
    make_attempt(make_job(), agentless=True, nodes=[])
    acked(b.message())
    attempt = Attempt.objects.get()
    assert (attempt.agentless, attempt.nodes) == (False, ["gpu1", "gpu2"])


def test_a_new_attempt_in_another_slurm_job_is_confirmed_anew(make_job: Any) -> None:
    make_job(owner_confirmed=True, slurm_job_id="7")
    acked(b.message())
    assert TrainingJob.objects.get().owner_confirmed is True
    acked(b.message(generation=2, job={"slurm_job_id": "9"}))
    job = TrainingJob.objects.get()
    assert (job.slurm_job_id, job.owner_confirmed) == ("9", False)
