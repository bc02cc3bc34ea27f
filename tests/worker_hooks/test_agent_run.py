"""`relume run` with real processes and a real HTTP server: how ranks live and die, and what the exit code is."""

import json
import os
import pwd
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker_hooks.agent_stage import RUN_ID, Stage, alive, stage, until
from worker_hooks.agent.options import UsageError, parse_options
from worker_hooks.protocol.generations import read_generation
from worker_hooks.protocol.minting import mint

pytestmark = pytest.mark.pure


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


def test_a_run_that_finishes(run: Stage) -> None:
    code, errors = run.end(run.start("--ranks", "2", steps=10))
    assert code == 0
    assert "rank 0 begins" in errors and "rank 1 begins" in errors
    assert run.controller.values(rank=0) == run.controller.values(rank=1) == list(range(1, 11))
    assert [event["rank"] for event in run.controller.events("rank_started")] == [0, 1]
    assert {event["data"]["exit_code"] for event in run.controller.events("rank_exited")} == {0}
    assert run.controller.events("finished")[0]["data"] == {"step": 10}
    last = run.controller.messages[-1]
    assert last["agent"]["state"] == "ended" and [rank["state"] for rank in last["ranks"]] == ["exited", "exited"]
    assert last["ranks"][1]["step"] == 10 and last["ranks"][1]["phase"] == "training"
    assert list(run.spool.iterdir()) == [], "everything was acked: nothing waits"
    assert list((run.folder / "tmp").glob("relume-*/*")) == [], "the node-local folder is gone"


def test_what_the_ranks_find_in_their_environment(run: Stage) -> None:
    environ = {**run.environ(), "RELUME_API_TOKEN": "private", "USER": "somebody-else"}
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"]
    names += ["OMP_NUM_THREADS", "RELUME_RUN_ID", "RELUME_GENERATION", "RELUME_CHECKPOINT_ROOT", "RELUME_API_TOKEN"]
    show = f"import json, os; print(json.dumps([os.environ.get(name) for name in {names!r}]))"
    agent = run.start("--ranks", "2", program=(sys.executable, "-c", show), environ=environ)
    output, _ = agent.communicate(timeout=20)
    first, second = sorted(json.loads(line) for line in output.splitlines())
    port = read_generation(run.run, 1).rendezvous["port"]
    assert first[:7] == ["0", "0", "2", "2", "0", "127.0.0.1", str(port)]
    assert second[:2] == ["1", "1"]
    assert first[7].isdigit()
    assert first[8:] == [RUN_ID, "1", str(run.root), None]
    assert run.controller.messages[-1]["job"]["user"] == pwd.getpwuid(os.getuid()).pw_name


@pytest.mark.parametrize(
    ("end", "code", "signal_number", "expected"),
    [
        ("exit:3", 3, None, 3),
        ("exit:77", 77, None, 77),
        ("exit:76", 76, None, 76),
        ("exit:75", 75, None, 75),
        ("signal:9", None, 9, 75),
        ("signal:11", None, 11, 75),
    ],
)
def test_a_failed_rank_takes_the_others_down(
    run: Stage, end: str, code: int | None, signal_number: int | None, expected: int
) -> None:
    exit_code, _ = run.end(run.start("--ranks", "2", steps=3, end=end, only=1))
    assert exit_code == expected
    ends = {event["rank"]: event["data"] for event in run.controller.events("rank_exited")}
    assert ends[1] == {"exit_code": code, "signal": signal_number}
    assert ends[0]["torn_down"] is True
    (log,) = run.controller.events("rank_log")
    assert log["rank"] == 1 and "rank 1 begins" in log["data"]["tail"]
    assert run.controller.events("stopped")[0]["data"]["exit_code"] == expected


def test_ranks_that_ignore_sigterm_are_killed_with_their_children(run: Stage) -> None:
    show = "import os, time; print(os.fork(), flush=True); time.sleep(60)"
    ignoring = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {show}"
    agent = run.start("--teardown-grace", "0.2", program=(sys.executable, "-c", ignoring))
    assert agent.stdout is not None
    child = until(lambda: int(agent.stdout.readline()))
    (rank,) = until(run.rank_pids)
    agent.send_signal(signal.SIGTERM)
    assert run.end(agent)[0] == 1
    until(lambda: not alive(child))
    assert not alive(rank)
    assert run.controller.events("stopped")[0]["data"]["reason"] == "the agent got signal 15"


def test_lines_of_several_ranks_are_not_mixed_and_unfinished_ones_come_through(run: Stage) -> None:
    chatter = "import os, time\nfor i in range(300): os.write(1, b'a' * 30); os.write(1, b'b' * 30 + b'\\n')\n"
    chatter += "os.write(1, b'prompt>'); time.sleep(0.5); os.write(1, b'done')"
    agent = run.start("--ranks", "3", program=(sys.executable, "-c", chatter))
    output, _ = agent.communicate(timeout=30)
    lines = output.splitlines()
    assert lines.count("a" * 30 + "b" * 30) == 900
    assert "".join(lines[900:]).count("prompt>") == "".join(lines[900:]).count("done") == 3


def test_a_program_that_is_not_there(run: Stage) -> None:
    code, errors = run.end(run.start("--ranks", "2", program=("/no/such/program",)))
    assert code == 127 and "/no/such/program cannot be run" in errors
    assert run.controller.events("rank_exited")[0]["data"]["exit_code"] == 127


def test_a_program_that_may_not_be_executed(run: Stage) -> None:
    plain = run.folder / "plain.txt"
    plain.write_text("text", encoding="utf-8")
    assert run.end(run.start(program=(str(plain),)))[0] == 126


def test_no_rank_outlives_a_killed_agent(run: Stage) -> None:
    agent = run.start("--ranks", "2", end="hang")
    pids = until(run.rank_pids)
    agent.kill()
    agent.wait(timeout=10)
    until(lambda: not any(alive(pid) for pid in pids))


@pytest.mark.parametrize("first", ["agent", "ranks"])
def test_a_signal_to_the_whole_step_is_not_the_ranks_failure(run: Stage, first: str) -> None:
    agent = run.start("--ranks", "2", end="hang")
    pids = until(run.rank_pids)
    for pid in [agent.pid, *pids] if first == "agent" else [*pids, agent.pid]:
        os.kill(pid, signal.SIGTERM)
    assert run.end(agent)[0] == 1
    assert [event["data"].get("torn_down") for event in run.controller.events("rank_exited")] == [True, True]
    assert run.controller.events("rank_log") == []


def test_a_rank_that_somebody_ended_with_sigterm_failed(run: Stage) -> None:
    agent = run.start(end="hang")
    (pid,) = until(run.rank_pids)
    os.kill(pid, signal.SIGTERM)
    assert run.end(agent)[0] == 75
    assert run.controller.events("rank_exited")[0]["data"] == {"exit_code": None, "signal": 15}


def test_a_newer_generation_ends_it_at_once(run: Stage) -> None:
    agent = run.start("--ranks", "2", "--teardown-grace", "30", end="hang", ignore_term=True)
    pids = until(run.rank_pids)
    mint(run.run, node="gpu9", world_size=1, now=0.0)
    assert run.end(agent)[0] == 76
    assert not any(alive(pid) for pid in pids)


def test_the_controllers_word_of_a_newer_generation_ends_it(run: Stage) -> None:
    agent = run.start(end="hang")
    until(run.rank_pids)
    run.controller.superseded_by = 2
    assert run.end(agent)[0] == 76
    assert run.controller.events("stopped"), "records of a superseded generation are still delivered"


def test_a_stop_lets_ranks_end_by_themselves(run: Stage) -> None:
    agent = run.start("--ranks", "2", end="hang")
    until(run.rank_pids)
    run.controller.instructions = [{"kind": "stop", "reason": "maintenance"}]
    assert run.end(agent)[0] == 75
    assert {event["data"]["exit_code"] for event in run.controller.events("rank_exited")} == {0}
    assert "maintenance" in run.controller.events("stopped")[0]["data"]["reason"]


def test_ranks_are_told_to_save_and_how_often(run: Stage) -> None:
    run.start(end="hang")
    until(run.rank_pids)
    run.controller.interval_s = 240.0
    run.controller.instructions = [{"kind": "save", "id": "2026-11-30T07:00:00", "why": "asked for"}]
    (control,) = (run.folder / "tmp").glob("relume-*/*/control.json")

    def told() -> bool:
        data = json.loads(control.read_bytes())
        return (data["save"], data["interval_s"]) == ("2026-11-30T07:00:00", 240.0)

    until(told)
    assert json.loads(control.read_bytes())["stop"] is None


def test_a_stop_that_is_not_heard_ends_them_after_their_time(run: Stage) -> None:
    sleeper = (sys.executable, "-c", "import time; time.sleep(60)")
    agent = run.start("--stop-grace", "0.2", program=sleeper)
    until(run.rank_pids)
    run.controller.instructions = [{"kind": "stop", "reason": "maintenance"}]
    assert run.end(agent)[0] == 75
    assert run.controller.events("rank_exited")[0]["data"]["torn_down"] is True


def test_an_instruction_of_a_newer_controller_is_said_and_skipped(run: Stage) -> None:
    run.controller.instructions = [{"kind": "dance", "speed": 3}, {"kind": "stop"}]
    code, errors = run.end(run.start(steps=20))
    assert code == 0
    assert errors.count("'dance' is not known") == 1 and "stop.reason: missing" in errors


def test_signals_meant_for_the_ranks_do_not_end_the_agent(run: Stage) -> None:
    agent = run.start(steps=40)
    until(run.rank_pids)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        agent.send_signal(number)
    assert run.end(agent)[0] == 0


def test_a_paused_agent_goes_on_where_it_was(run: Stage) -> None:
    agent = run.start("--ranks", "2", steps=120)
    until(run.rank_pids)
    agent.send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    agent.send_signal(signal.SIGCONT)
    assert run.end(agent)[0] == 0
    assert run.controller.values(rank=1) == list(range(1, 121))


@pytest.mark.parametrize(
    ("options", "expected", "complaint"),
    [
        (("--ranks", "0"), 2, "not a number above 0"),
        (("--colour",), 2, "--colour"),
        (("--teardown-grace", "-1"), 2, "not a number of seconds"),
        (("--interface", "none0"), 75, "none0"),
    ],
)
def test_options_that_cannot_be_used(run: Stage, options: tuple[str, ...], expected: int, complaint: str) -> None:
    code, errors = run.end(run.start(*options))
    assert code == expected and complaint in errors and "Traceback" not in errors
    assert run.generation() == 0


def test_no_program_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="put the program after --"):
        parse_options(["--ranks", "2"], {})
