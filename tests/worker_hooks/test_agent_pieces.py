"""The agent's pure parts: place, threads, host lists, pacing, clock, record joining, output tails."""

import json
import math
import socket
from pathlib import Path
from typing import Any

import pytest

from worker_hooks.agent import network
from worker_hooks.agent.attempt import AttemptError, Waiter, find_run_id
from worker_hooks.agent.hostnames import expand
from worker_hooks.agent.output import Tail
from worker_hooks.agent.pacing import ClockOffset, backoff_s, pace_s
from worker_hooks.agent.placement import PlacementError, default_ranks, read_placement, thread_count
from worker_hooks.agent.run_folder import EventTail, FolderError, coalesce, make_run_folder
from worker_hooks.agent.spool_file import Draft

pytestmark = pytest.mark.pure

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_CLUSTER_NAME": "lab",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "3",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[1,3]",
    "SLURM_JOB_NODELIST": "gpu[1-3]",
    "SLURMD_NODENAME": "gpu3",
    "SLURM_RESTART_COUNT": "2",
    "SLURM_STEP_ID": "4",
}


def test_the_step_not_the_job_says_how_many_nodes() -> None:
    place = read_placement(STEP, "host", "ada", 1)
    assert (place.node, place.index, place.node_count, place.step_id, place.leads) == ("gpu3", 1, 2, "4", False)
    assert (place.job.nodes, place.job.restart_count, place.job.user) == ("gpu[1,3]", 2, "ada")


def test_outside_slurm_it_is_a_job_of_one_node() -> None:
    place = read_placement({}, "desk", "ada", 411)
    assert place.leads and place.node_count == 1 and place.job.slurm_job_id == "local-desk-411"


@pytest.mark.parametrize("change", [{"SLURM_LOCALID": "1"}, {"SLURM_NODEID": "2"}, {"SLURM_RESTART_COUNT": "two"}])
def test_a_place_that_cannot_be(change: dict[str, str]) -> None:
    with pytest.raises(PlacementError):
        read_placement({**STEP, **change}, "host", "ada", 1)


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [({}, 1), ({"SLURM_GPUS_ON_NODE": "8"}, 8), ({"CUDA_VISIBLE_DEVICES": "0,3"}, 2), ({"SLURM_GPUS_ON_NODE": "0"}, 1)],
)
def test_as_many_ranks_as_gpus(environ: dict[str, str], ranks: int) -> None:
    assert default_ranks(environ) == ranks


@pytest.mark.parametrize(
    ("environ", "threads"),
    [
        ({"OMP_NUM_THREADS": "3"}, "3"),
        ({"SLURM_CPUS_PER_TASK": "8"}, "4"),
        ({"SLURM_CPUS_ON_NODE": "1"}, "1"),
        ({}, "8"),
    ],
)
def test_threads_of_a_rank(environ: dict[str, str], threads: str) -> None:
    assert thread_count(environ, ranks=2, cpus=16) == threads


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[1-3,07],login", ["gpu1", "gpu2", "gpu3", "gpu07", "login"]),
        ("r[1-2]n[08-10]x", [f"r{r}n{n}x" for r in (1, 2) for n in ("08", "09", "10")]),
        ("gpu[a-b]", ["gpu[a-b]"]),
        ("", []),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


def test_backing_off_is_full_jitter_under_a_cap() -> None:
    limits = [backoff_s(failures, lambda _, most: most) for failures in range(8)]
    assert limits == sorted(limits) and limits[0] < limits[3] < limits[-1] == 5.0
    assert backoff_s(5, lambda least, _: least) == 0.1
    assert backoff_s(10**6, lambda _, most: most) == 5.0
    assert backoff_s(1, lambda *_: 0.5, asked_s=7.0) == 7.5
    assert backoff_s(1, lambda *_: 0.5, asked_s=1e9) == 60.0


@pytest.mark.parametrize(("asked", "kept"), [(1.0, 1.0), (0.0, 0.1), (-5.0, 0.1), (1e9, 60.0)])
def test_the_controllers_pace_within_bounds(asked: float, kept: float) -> None:
    assert pace_s(asked) == kept


def test_the_clock_offset_trusts_the_quickest_exchange() -> None:
    clock = ClockOffset()
    assert clock.seconds is None
    clock.add(100.0, 102.0, 111.0)
    clock.add(200.0, 200.25, 205.125)
    clock.add(300.0, 304.0, 308.0)
    clock.add(300.0, 299.0, 0.0)  # this node's clock was set back meanwhile
    assert clock.seconds == 5.0


def metrics(rank: int, steps: list[int], **more: Any) -> Draft:
    body = {"rank": rank, "name": "loss", "steps": steps, "times": [1.0] * len(steps), "values": [0.5] * len(steps)}
    return Draft("metrics", float(steps[-1]), {**body, **more})


def test_points_of_one_curve_travel_together() -> None:
    event = Draft("event", 2.5, {"name": "x", "rank": 0, "data": {}})
    joined = coalesce([metrics(0, [1]), metrics(1, [1]), metrics(0, [2, 3]), event, metrics(0, [4])])
    assert [(draft.kind, draft.body.get("steps")) for draft in joined] == [
        ("metrics", [1, 2, 3, 4]),
        ("metrics", [1]),
        ("event", None),
    ]
    assert joined[0].at == 4.0


def test_points_with_keys_of_a_newer_writer_stay_as_they_are() -> None:
    drafts = [metrics(0, [1], unit="nats"), metrics(0, [2], unit="nats")]
    assert coalesce(drafts) == drafts


def test_a_joined_record_stays_within_what_the_controller_takes() -> None:
    joined = coalesce([metrics(0, list(range(3000))), metrics(0, list(range(3000, 6000)))])
    assert [len(draft.body["steps"]) for draft in joined] == [3000, 3000]


def test_a_partial_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "events-0.jsonl"
    line = json.dumps({"kind": "event", "at": 1.0, "name": "a", "rank": 0, "data": {}}) + "\n"
    tail = EventTail(tmp_path)
    path.write_text(line + line[:20], encoding="utf-8")
    assert len(tail.read()) == 1 and tail.offsets == {"events-0.jsonl": len(line)}
    assert tail.read() == []
    path.write_text(line + line, encoding="utf-8")
    assert len(tail.read()) == 1 and tail.rejected == 0


def test_text_that_databases_refuse_is_replaced(tmp_path: Path) -> None:
    data = {"kind": "event", "at": 1.0, "name": "a", "rank": 0, "data": {"k\0": ["x\0y", "\ud800", "\\u0000", math.pi]}}
    (tmp_path / "events-0.jsonl").write_text(json.dumps(data) + "\n", encoding="utf-8")
    (draft,) = EventTail(tmp_path).read()
    assert draft.body["data"] == {"k\ufffd": ["x\ufffdy", "?", "\\u0000", math.pi]}


def test_a_tail_is_bounded_and_begins_with_a_whole_line() -> None:
    tail = Tail(limit=20)
    for line in (b"first line\n", b"second \xff\0\n", b"third line\n"):
        tail.add(line)
    assert tail.text() == "third line\n"
    short = Tail()
    short.add(b"\xff\0\n")
    assert short.text() == "\ufffd\ufffd\n"


def test_a_run_folder_that_somebody_else_prepared_is_refused(tmp_path: Path) -> None:
    (tmp_path / "relume-0").mkdir(mode=0o777)
    (tmp_path / "relume-0").chmod(0o777)
    with pytest.raises(FolderError, match="0700"):
        make_run_folder(tmp_path / "relume-0", "x", 1)
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(FolderError):
        make_run_folder(tmp_path / "link", "x", 1)


def test_addresses() -> None:
    assert network.interface_address("lo") == "127.0.0.1"
    assert network.address_towards("http://127.0.0.1:8765") == "127.0.0.1"
    assert network.address_towards("not a url").count(".") == 3
    assert network.address_towards("http://a..b:1").count(".") == 3, "a host that no resolver takes stops no training"
    assert network.address_towards("http://\0x:1").count(".") == 3
    with pytest.raises(network.NetworkError, match="none0"):
        network.interface_address("none0")


def test_a_taken_port_is_not_chosen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        offers = iter([taken, taken, 0])
        assert network.free_port("127.0.0.1", lambda: next(offers)) == 0
        with pytest.raises(network.NetworkError):
            network.free_port("127.0.0.1", lambda: taken)


def test_what_a_connection_meets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert network.connect_outcome("127.0.0.1", port, 1.0) == "open"
    assert network.connect_outcome("127.0.0.1", port, 1.0) == "refused"
    assert network.connect_outcome("255.255.255.255", 9, 1.0) == "unreachable"


@pytest.mark.parametrize("content", [None, "{", '{"run_id": "tj-0123456789ab"}', "folder"])
def test_a_requeued_job_whose_run_cannot_be_read_does_not_begin_another(tmp_path: Path, content: str | None) -> None:
    place = read_placement({**STEP, "SLURM_NODEID": "0"}, "host", "ada", 1)
    wait = Waiter(0.0, lambda _: True)
    named = tmp_path / "jobs" / "lab.7.json"
    if content is None:
        first = find_run_id({}, None, tmp_path, place, wait)
        assert find_run_id({}, None, tmp_path, place, wait) == first
        return
    named.parent.mkdir()
    named.mkdir() if content == "folder" else named.write_text(content)
    with pytest.raises(AttemptError, match=r"lab\.7\.json cannot be read"):
        find_run_id({}, None, tmp_path, place, wait)
    assert content == "folder" or named.read_text() == content


def test_a_checkpoint_root_that_takes_no_file_is_said_in_one_sentence(tmp_path: Path) -> None:
    place = read_placement({**STEP, "SLURM_NODEID": "0"}, "host", "ada", 1)
    (tmp_path / "root").write_text("a file")
    with pytest.raises(AttemptError, match="Not a directory"):
        find_run_id({}, None, tmp_path / "root", place, Waiter(0.0, lambda _: True))
