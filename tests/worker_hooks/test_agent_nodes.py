"""Two agents of one job on one machine: leader and follower, with Slurm's environment faked."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker_hooks.agent_stage import RUN_ID, Stage, stage, until
from worker_hooks.protocol.generations import read_generation
from worker_hooks.protocol.minting import mint

pytestmark = pytest.mark.pure
SHOW = (
    "import json, os; print(json.dumps([os.environ[n] for n in "
    "('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'GROUP_RANK', 'RELUME_GENERATION', 'MASTER_ADDR', 'MASTER_PORT')]))"
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


def test_the_follower_takes_what_its_leader_chose(run: Stage) -> None:
    program = (sys.executable, "-c", SHOW)
    follower = run.start("--ranks", "2", program=program, environ=run.environ("gpu2", 1, 2))
    time.sleep(0.3)  # it must wait, not mint
    assert run.generation() == 0
    leader = run.start("--ranks", "2", program=program, environ=run.environ("gpu1", 0, 2))
    ranks = []
    for agent in (leader, follower):
        output, _ = agent.communicate(timeout=20)
        assert agent.returncode == 0
        ranks += [json.loads(line) for line in output.splitlines()]
    made = read_generation(run.run, 1)
    assert made.nodes == ("gpu1", "gpu2") and made.world_size == 4 and made.job["slurm_job_id"] == "7"
    tail = ["1", made.rendezvous["address"], str(made.rendezvous["port"])]
    assert sorted(ranks) == [[str(r), str(r % 2), "4", str(r // 2), *tail] for r in range(4)]
    assert {message["node"] for message in run.controller.messages} == {"gpu1", "gpu2"}
    assert [event["rank"] for event in run.controller.events("generation_minted")] == [None]


def test_after_a_requeue_the_follower_waits_for_the_new_generation(run: Stage) -> None:
    old = {"cluster": "lab", "slurm_job_id": "7", "restart_count": 0, "step_id": "0"}
    rendezvous = {"address": "127.0.0.1", "port": 1}
    mint(run.run, node="gpu1", world_size=2, now=time.time(), job=old, rendezvous=rendezvous)
    program = (sys.executable, "-c", SHOW)
    follower = run.start(program=program, environ=run.environ("gpu2", 1, 2, restart=1))
    leader = run.start(program=program, environ=run.environ("gpu1", 0, 2, restart=1))
    outputs = [agent.communicate(timeout=20)[0] for agent in (leader, follower)]
    assert [json.loads(output)[4] for output in outputs] == ["2", "2"]


def test_a_follower_without_a_leader_gives_up(run: Stage) -> None:
    environ = run.environ("gpu2", 1, 2)
    code, errors = run.end(run.start("--generation-timeout", "0.3", environ=environ))
    assert code == 75 and "minted no generation" in errors


def test_a_waiting_follower_hears_sigterm(run: Stage) -> None:
    agent = run.start(environ=run.environ("gpu2", 1, 2))
    until(lambda: catches(agent.pid, signal.SIGTERM))
    agent.send_signal(signal.SIGTERM)
    assert run.end(agent)[0] == 1


def catches(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (number - 1) & 1)


def test_nodes_with_different_numbers_of_ranks_are_refused(run: Stage) -> None:
    leader = run.start("--ranks", "2", environ=run.environ("gpu1", 0, 2), end="hang")
    code, errors = run.end(run.start("--ranks", "3", environ=run.environ("gpu2", 1, 2)))
    assert code == 75 and "same number of ranks" in errors
    leader.send_signal(signal.SIGTERM)
    assert run.end(leader)[0] == 1


def test_after_an_ordinary_failure_it_stays_for_probes_while_the_controller_answers(run: Stage) -> None:
    agent = run.start("--linger", "30", environ=run.environ("gpu1", 0, 2), end="exit:1", steps=2)
    until(lambda: run.controller.events("rank_log"))
    target = {"node": "gpu2", "address": "127.0.0.1", "port": 9}
    run.controller.instructions = [{"kind": "probe", "id": "lost", "targets": [target]}]
    (answer,) = until(lambda: run.controller.of_kind("probe"))
    assert answer["outcome"] == "refused"
    assert run.controller.messages[-1]["agent"]["state"] == "ending"
    run.controller.away()
    assert run.end(agent)[0] == 1


def test_a_stop_ends_the_lingering(run: Stage) -> None:
    agent = run.start("--linger", "30", environ=run.environ("gpu1", 0, 2), end="exit:1", steps=2)
    until(lambda: run.controller.events("rank_log"))
    run.controller.instructions = [{"kind": "stop", "reason": "requeue"}]
    assert run.end(agent)[0] == 1


def test_several_agents_on_one_node_are_refused(run: Stage) -> None:
    code, errors = run.end(run.start(environ={**run.environ(), "SLURM_LOCALID": "1"}))
    assert code == 2 and "--ntasks-per-node=1" in errors
    assert not (run.root / RUN_ID).exists()


def test_outside_of_slurm_the_log_says_how_to_go_on(run: Stage) -> None:
    environ = {name: value for name, value in run.environ().items() if not name.startswith(("RELUME_", "SLURM"))}
    show = (sys.executable, "-c", "import os; print(os.environ['RELUME_RUN_ID'], os.environ['RELUME_GENERATION'])")
    output, errors = run.start(program=show, environ=environ).communicate(timeout=20)
    run_id, _, generation = output.strip().partition(" ")
    assert generation == "1" and f"to go on with this one: RELUME_RUN_ID={run_id}\n" in errors
    output, errors = run.start(program=show, environ={**environ, "RELUME_RUN_ID": run_id}).communicate(timeout=20)
    assert output.strip() == f"{run_id} 2" and "to go on with this one" not in errors


def test_a_bare_job_shares_its_run_id_between_nodes(run: Stage) -> None:
    def bare(*where: int | str) -> dict[str, str]:
        environ = run.environ(*where)  # type: ignore[arg-type]
        return {name: value for name, value in environ.items() if not name.startswith("RELUME_")}

    show = (sys.executable, "-c", "import os; print(os.environ['RELUME_RUN_ID'])")
    follower = run.start(program=show, environ=bare("gpu2", 1, 2))
    leader = run.start(program=show, environ=bare("gpu1", 0, 2))
    ids = {agent.communicate(timeout=20)[0].strip() for agent in (leader, follower)}
    assert len(ids) == 1 and all(run_id.startswith("tj-") for run_id in ids)
