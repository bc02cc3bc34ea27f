"""`relume run` under a real srun on several nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from deploy.lab.cluster import Lab
from tests.cluster.sbatch_world import Desk, eventually, open_desk

pytestmark = pytest.mark.cluster


@pytest.fixture
def desk(lab: Lab) -> Iterator[Desk]:
    yield from open_desk(lab)


def train(desk: Desk, nodes: str, count: int, **wish: Any) -> str:
    """Submit a job of fake ranks, two on each node; its id."""
    script = desk.script(f"exec {desk.ranks(wish)}")
    argv = ["--parsable", f"-N{count}", f"-w{nodes}", "-o", "train", "--relume-checkpoint-root=ck", script]
    return desk.submit(*argv).stdout.strip()


def test_two_nodes_train_to_the_end(desk: Desk) -> None:
    job = desk.ended(train(desk, "gpu[1-2]", 2, steps=40))
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), (desk.home / "train").read_text()
    for rank in range(4):
        assert desk.controller.values(rank=rank) == list(range(1, 41))
    first, second = desk.last_message("gpu1"), desk.last_message("gpu2")
    assert first is not None and second is not None
    assert first["agent"]["leader"] and not second["agent"]["leader"]
    assert second["job"]["nodes"] == "gpu[1-2]" and second["job"]["user"] == desk.lab.users["owner"]
    assert second["agent"]["addresses"] == {
        "management": desk.lab.state.node(2).management,
        "training": desk.lab.state.node(2).training,
    }


def test_a_crashed_rank_ends_the_step_on_every_node(desk: Desk) -> None:
    job = desk.ended(train(desk, "gpu[1-2]", 2, steps=5, end="signal:11", only=3))
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "75:0")
    ends = {event["rank"]: event["data"] for event in desk.controller.events("rank_exited")}
    assert ends[3] == {"exit_code": None, "signal": 11}
    assert ends[0]["torn_down"] and ends[1]["torn_down"] and ends[2]["torn_down"]


def test_the_surviving_agent_probes_a_dead_host(desk: Desk) -> None:
    train(desk, "gpu[1-2]", 2, steps=1, end="hang")
    peer = eventually(lambda: desk.last_message("gpu2"))
    eventually(lambda: desk.last_message("gpu1"))
    target = {"node": "gpu2", "address": peer["agent"]["addresses"]["management"], "port": peer["agent"]["probe_port"]}
    desk.controller.instructions = [{"kind": "probe", "id": "alive", "targets": [target]}]
    eventually(lambda: any(p["id"] == "alive" and p["outcome"] == "open" for p in desk.controller.of_kind("probe")))
    desk.lab.kill_node(2)
    desk.controller.instructions = [{"kind": "probe", "id": "dead", "targets": [target]}]
    (answer,) = eventually(lambda: [p for p in desk.controller.of_kind("probe") if p["id"] == "dead"])
    assert answer["outcome"] in ("timeout", "unreachable")


def test_a_requeue_is_the_next_generation_of_the_same_run(desk: Desk) -> None:
    job_id = train(desk, "gpu[1-2]", 2, steps=10, end="hang")
    eventually(lambda: desk.controller.values(rank=3) == list(range(1, 11)))
    desk.lab.run("scontrol", "requeue", job_id)
    eventually(lambda: desk.job(job_id)["JobState"] == "PENDING")
    eventually(lambda: desk.controller.events("stopped", generation=1))
    desk.lab.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")
    message = eventually(lambda: desk.last_message("gpu2", generation=2))
    assert message["job"]["restart_count"] == 1
    assert {message["run_id"] for message in desk.controller.messages} == {desk.identity(job_id)["run_id"]}
    desk.lab.run("scancel", job_id)
    eventually(lambda: desk.controller.events("stopped", generation=2))
