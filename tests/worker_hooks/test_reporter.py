"""Telemetry against a controller that goes away, stumbles and lies: every record arrives once, in order."""

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker_hooks.agent_stage import RUN_ID, Stage, stage, until
from worker_hooks.agent.identity import load_identity
from worker_hooks.protocol.messages import decode_message

pytestmark = pytest.mark.pure


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


def test_messages_keep_the_schema(run: Stage) -> None:
    run.controller.clock_ahead_s = 100.0
    run.end(run.start("--ranks", "2", steps=30))
    messages = [decode_message(message) for message in run.controller.messages]
    assert {message.generation for message in messages} == {1}
    offsets = [message.agent.clock_offset_s for message in messages]
    assert offsets[0] is None and offsets[-1] == pytest.approx(100.0, abs=2.0)
    assert messages[0].job.slurm_job_id == "7" and messages[0].agent.leader


@pytest.mark.parametrize("mode", ["error", "busy", "garbage", "cut", "drip", "refuse_token"])
def test_a_controller_that_stumbles_loses_nothing(run: Stage, mode: str) -> None:
    agent = run.start("--ranks", "2", steps=70)
    until(run.controller.values)
    run.controller.mode = mode
    until(lambda: run.controller.refused)
    run.controller.mode = "ok"
    assert run.end(agent)[0] == 0
    assert run.controller.values(rank=0) == run.controller.values(rank=1) == list(range(1, 71))


def test_a_controller_that_is_away_loses_nothing_and_holds_nobody_up(run: Stage) -> None:
    run.controller.away()
    agent = run.start("--ranks", "2", steps=60)
    spooled = run.spool / "gpu1.g1.jsonl"
    until(lambda: spooled.exists() and spooled.read_text(encoding="utf-8").count('"metrics"') > 2)
    assert run.controller.messages == []
    run.controller.back()
    code, _ = run.end(agent)
    assert code == 0
    assert run.controller.values(rank=0) == run.controller.values(rank=1) == list(range(1, 61))


def test_a_run_that_ends_without_a_controller_leaves_its_records_to_the_next(run: Stage) -> None:
    run.controller.away()
    agent = run.start(steps=5, end="hang")
    until((run.spool / "gpu1.g1.jsonl").exists)
    agent.send_signal(signal.SIGTERM)
    code, errors = run.end(agent)
    assert code == 1 and "records wait in" in errors
    run.controller.back()
    assert run.end(run.start(environ=run.environ(restart=1), steps=3))[0] == 0
    assert run.controller.events("agent_started", generation=1)
    assert run.controller.values(generation=2) == [1, 2, 3]
    assert list(run.spool.iterdir()) == []


def test_a_killed_agents_records_are_delivered_by_its_successor(run: Stage) -> None:
    """Also those that the ranks wrote and the agent never read: the node-local event files are read on."""
    run.controller.away()
    agent = run.start("--ranks", "2", steps=1000, period=0.01)
    until(lambda: any(event.stat().st_size > 20000 for event in (run.folder / "tmp").glob("*/*/events-*.jsonl")))
    agent.kill()
    agent.wait(timeout=10)
    (left,) = (run.folder / "tmp").glob("relume-*/*")
    wrote = {rank: _steps(left / f"events-{rank}.jsonl") for rank in (0, 1)}
    run.controller.back()
    until(lambda: not _locked(left))
    assert run.end(run.start("--ranks", "2", environ=run.environ(restart=1), steps=20))[0] == 0
    for rank in (0, 1):
        assert run.controller.values(rank=rank, generation=1) == wrote[rank] != []
    last = [message for message in run.controller.messages if message["generation"] == 1][-1]
    assert last["agent"]["state"] == "ended" and last["ranks"] == []
    assert not left.exists() and list(run.spool.iterdir()) == []


def _steps(path: Path) -> list[int]:
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line)["steps"][0] for line in lines]


def _locked(folder: Path) -> bool:
    """Its ranks may still be dying: they hold no lock, the agent did."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_the_leader_delivers_for_a_node_that_is_gone(run: Stage) -> None:
    run.controller.away()
    agent = run.start(environ=run.environ(node="gpu4"), end="hang", steps=3)
    until((run.spool / "gpu4.g1.jsonl").exists)
    agent.kill()
    run.controller.back()
    assert run.end(run.start(environ=run.environ(restart=1), steps=20))[0] == 0
    assert {message["node"] for message in run.controller.messages if message["generation"] == 1} == {"gpu4"}
    assert list(run.spool.iterdir()) == []


def test_a_rejected_record_is_set_aside_and_the_others_go_through(run: Stage) -> None:
    run.controller.rejects = lambda record: record.get("steps", [0])[0] == 1
    code, errors = run.end(run.start("--ranks", "2", steps=10, period=0.2))
    assert code == 0 and "was rejected and set aside" in errors
    assert len(run.controller.events("set_aside")) == 2
    assert run.controller.events("finished")


def test_no_record_is_given_up_for_a_complaint_about_the_heartbeat(run: Stage) -> None:
    run.controller.rejects_heartbeats = True
    agent = run.start(end="hang", steps=3)
    until(lambda: run.controller.refused)
    written = run.folder / "tmp"
    until(lambda: [p for p in written.glob("*/*/events-0.jsonl") if p.read_text(encoding="utf-8").count("\n") == 3])
    run.controller.rejects_heartbeats = False
    agent.send_signal(signal.SIGTERM)
    _, errors = run.end(agent)
    assert "rejects this agent's messages" in errors and "message.sent_at" in errors
    assert run.controller.values() == [1, 2, 3] and run.controller.events("set_aside") == []


def test_lines_that_break_the_schema_are_left_in_their_file(run: Stage) -> None:
    lines = ['{"kind": "metrics", "at": 1.0}', "no json", '{"kind": "event", "at": NaN, "name": "x", "data": {}}']
    lines += ['{"kind": "metrics", "at": 1, "rank": 0, "name": "loss", "steps": [1], "times": [1], "values": [NaN]}']
    lines += ['{"kind": "event", "at": 1, "name": "too much", "rank": 0, "data": {"n": 1e999}}']
    lines += ['{"kind": "of_tomorrow", "at": 1.0, "what": "kept"}']
    text = "".join(line + "\n" for line in lines)
    write = f"import os; open(os.environ['RELUME_RUN_DIR'] + '/events-0.jsonl', 'w').write({text!r})"
    code, errors = run.end(run.start(program=(sys.executable, "-c", write)))
    assert code == 0 and "a record was set aside" in errors
    (point,) = run.controller.of_kind("metrics")
    assert point["values"] == ["NaN"]
    assert run.controller.of_kind("of_tomorrow")[0]["what"] == "kept"


@pytest.mark.parametrize("limit", [0, 700])
def test_a_full_disk_stops_neither_training_nor_reporting(run: Stage, limit: int) -> None:
    """RLIMIT_FSIZE makes every file as small as on a full disk; the ranks' event files are no exception."""
    program = (sys.executable, "-c", "import time; time.sleep(1.5)")
    spool = run.folder / "full"
    if limit == 0:
        spool.write_text("a file in the way", encoding="utf-8")
    agent = run.start("--spool", str(spool / "x"), program=program)
    until(run.rank_pids)
    if limit:
        resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (limit, limit))
    code, errors = run.end(agent)
    assert code == 0 and "kept in memory only" in errors
    assert run.controller.events("finished"), "what could not be spooled was posted all the same"


def test_probes_are_answered_at_once_and_once(run: Stage) -> None:
    run.controller.pace_s = 1.0
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_port = server.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as other:
            shut_port = other.getsockname()[1]
        targets = [
            {"node": "gpu2", "address": "127.0.0.1", "port": open_port},
            {"node": "gpu3", "address": "127.0.0.1", "port": shut_port},
        ]
        run.controller.instructions = [{"kind": "probe", "id": "p1", "targets": targets}]
        agent = run.start(end="hang", steps=1)
        answers = until(lambda: found if len(found := run.controller.of_kind("probe")) == 2 else None)
        before = len(run.controller.messages)
        until(lambda: len(run.controller.messages) > before + 2)
        agent.send_signal(signal.SIGTERM)
        run.end(agent)
    assert {(answer["node"], answer["outcome"]) for answer in answers} == {("gpu2", "open"), ("gpu3", "refused")}
    assert len(run.controller.of_kind("probe")) == 2, "the same instruction again is not the same probe again"


def test_an_agent_can_be_probed(run: Stage) -> None:
    agent = run.start(end="hang", steps=1)
    until(run.rank_pids)
    about = run.controller.messages[-1]["agent"]
    with socket.create_connection(("127.0.0.1", about["probe_port"]), timeout=5):
        pass
    agent.send_signal(signal.SIGTERM)
    run.end(agent)


def test_an_unregistered_run_is_registered_by_its_agent(run: Stage) -> None:
    run.identity.registered, run.identity.name = False, "mosaic"
    run.identity.save()
    environ = {**run.environ(), "RELUME_API_TOKEN": "user-token"}
    code, errors = run.end(run.start(environ=environ, steps=140))
    assert code == 0, errors
    (made,) = run.controller.registrations
    assert (made["run_id"], made["name"], made["api_token"]) == (RUN_ID, "mosaic", "user-token")
    assert made["slurm_job_id"] == "7" and made["token_sha256"].startswith("sha256:")
    assert "secret-token" not in json.dumps(made)
    assert load_identity(run.identity.path).registered
    assert run.controller.values() == list(range(1, 141))


def test_without_an_identity_it_runs_and_keeps_its_run_id_over_requeues(run: Stage) -> None:
    def environ(restart: int) -> dict[str, str]:
        bare = run.environ(restart=restart)
        return {name: value for name, value in bare.items() if not name.startswith("RELUME_")}

    show = (sys.executable, "-c", "import os; print(os.environ['RELUME_RUN_ID'], os.environ['RELUME_GENERATION'])")
    outputs = []
    for restart in (0, 1, 2):
        agent = run.start(program=show, environ=environ(restart))
        output, errors = agent.communicate(timeout=20)
        outputs.append(output.split())
        assert agent.returncode == 0 and "submit with `relume sbatch`" in errors
    assert len({run_id for run_id, _ in outputs}) == 1
    assert [generation for _, generation in outputs] == ["1", "2", "3"]
    assert run.controller.messages == []


def test_an_identity_that_others_can_read_is_not_used(run: Stage) -> None:
    run.identity.path.chmod(0o644)
    code, errors = run.end(run.start(steps=1))
    assert code == 0 and "others can read it" in errors and run.controller.messages == []
