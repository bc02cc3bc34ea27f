"""Node-local saves when something fails: peers, a disk that is really full, kills at random moments, two attempts."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker_hooks.conftest import ForkServer, World
from tests.worker_hooks.test_training_telemetry import events, run_dir
from worker_hooks import Run
from worker_hooks.digests import algorithm_of
from worker_hooks.protocol import committing, generations, minting
from worker_hooks.protocol.manifest import rank_file_name
from worker_hooks.protocol.tiers import LOCAL
from worker_hooks.training.files.digests import file_digest
from worker_hooks.training.saving.background import wait_until
from worker_hooks.training.tiers.exchange import CopyFailed
from worker_hooks.training.tiers.local import Partner

pytestmark = pytest.mark.torch
__all__ = ["run_dir"]

HERE = Path(__file__).parent
SEEDS = range(60 if os.environ.get("RELUME_FULL") else 6)
# Stops itself where a real rank can be stopped: the share is durable on its node, its word in the index is not written.
# torch's threads take the signal too, so this one may run on for a moment: it reads a line that is there only later.
STOPPED_WRITER = """
import os, signal, sys
from pathlib import Path
import torch
from worker_hooks import Run
from worker_hooks.training.saving import writing_rank
create = writing_rank.create_file
def stopped(path, data):
    if path.parent.parent.name == "local":
        os.kill(os.getpid(), signal.SIGSTOP)
        sys.stdin.readline()
    return create(path, data)
writing_rank.create_file = stopped
with Run(model=torch.nn.Linear(4, 4), root=Path(sys.argv[1]), checkpoint_every=0, local=sys.argv[2], local_every=1,
         asynchronous=False) as run:
    run.step(loss=1.0)
    print("saved", flush=True)
    run.step(loss=1.0)
"""


def local_steps(run: Path) -> list[int]:
    return [int(name[5:13]) for name in generations.accepted_folders(run, LOCAL)]


def checkpoints(folder: Path, tier: str) -> list[dict[str, Any]]:
    return [event for event in events(folder) if event["kind"] == "checkpoint" and event["tier"] == tier]


# --- peers ----------------------------------------------------------------------------------------------------------


def test_each_share_lies_on_the_next_node_too(world: World, tmp_path: Path) -> None:
    world.nodes = 2
    run_dirs = world.new_run_dir("first", 4)
    env = {"RELUME_LOCAL": str(tmp_path / "{node}"), "RELUME_LOCAL_EVERY": "2", "RELUME_PEER": "1"}
    env["RELUME_RUN_DIR"] = str(run_dirs)
    assert set(world.tiny(4, total=10, every=0, env=env, die={"rank": None, "step": 9}).wait()) == {-9}
    committing.commit_complete(world.run, now=time.time())  # as the next attempt does
    assert local_steps(world.run)[:2] == [8, 6]
    name = generations.accepted_folders(world.run, LOCAL)[0]
    manifest = generations.read_manifest(world.run / "local" / name)
    for node in ("gpu1", "gpu2"):
        for ref in manifest.ranks:
            folder = tmp_path / node / world.run.name / name
            assert (folder / ref.file).read_bytes() == (world.run / "local" / name / ref.file).read_bytes()
            assert intact(folder, ref.rank)
    saving = [generations.read_rank_file(world.run / "local" / name, rank).saving for rank in range(4)]
    assert [(said["node"], said["copy"]) for said in saving] == [("gpu1", "gpu2")] * 2 + [("gpu2", "gpu1")] * 2
    told = [record for record in world.events(run_dirs, 0) if record.get("tier") == "local"]
    assert {record["copies"] for record in told} == {4}
    left = list((tmp_path / "gpu2" / world.run.name).glob("step-*"))
    assert len(left) <= 4, "two that count, one in flight, one that rank 0 has not let go yet"


def test_a_peer_that_does_not_take_its_copy_costs_the_copy_alone(tmp_path: Path, run_dir: Path) -> None:
    def put(folder: str, rank_file: bytes) -> None:
        raise CopyFailed("rank 4 on gpu8: timed out")

    local = tmp_path / "nvme"
    with Run(model=torch.nn.Linear(4, 4), root=tmp_path, local=local, local_every=1, checkpoint_every=0) as run:
        assert run._attempt._saver._local is not None
        run._attempt._saver._local._partner = Partner("gpu8", put)
        run.step(loss=1.0)
        run._attempt._saver.settle()
    assert local_steps(run.folder) == [1]
    (record,) = checkpoints(run_dir, "local")
    assert (record["state"], record["copies"]) == ("committed", 0)
    index = run.folder / "local" / record["folder"]
    assert json.loads((index / rank_file_name(0)).read_bytes())["saving"]["copy"] is None
    (sign,) = [event for event in events(run_dir) if event.get("code") == "checkpoint_peer"]
    assert sign["raw"] == "no copy on the peer node: rank 4 on gpu8: timed out"


# --- a disk that is really full -------------------------------------------------------------------------------------


def test_a_small_disk_that_fills_up_costs_local_saves_until_there_is_room(tmp_path: Path, run_dir: Path) -> None:
    disk = tmp_path / "nvme"
    disk.mkdir()
    done = subprocess.run(
        [sys.executable, str(HERE / "programs" / "small_disk.py"), str(tmp_path), str(disk)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "RELUME_RUN_DIR": str(run_dir)},
        cwd=HERE.parents[1],
    )
    assert done.returncode == 0, done.stderr
    run_id, _, left = done.stdout.strip().partition(" ")
    states = {record["step"]: record["state"] for record in checkpoints(run_dir, "local")}
    assert states == {1: "committed", 2: "committed", 3: "failed", 4: "failed", 5: "failed"} | dict.fromkeys(
        (6, 7, 8), "committed"
    )
    failed = [record["reason"] for record in checkpoints(run_dir, "local") if record["state"] == "failed"]
    assert all("No space left" in reason and "rank-00000.d" in reason for reason in failed), failed
    assert [record["step"] for record in checkpoints(run_dir, "shared") if record["state"] == "committed"] == [4, 8]
    assert left == "['step-00000008.g1']" and local_steps(tmp_path / run_id) == [8]


# --- kills and two attempts -----------------------------------------------------------------------------------------


def test_a_writer_stopped_before_its_word_in_the_index_never_counts(tmp_path: Path) -> None:
    """Its share is whole on the node. The next attempt begins meanwhile; then the writer goes on."""
    node = tmp_path / "nvme"
    writer = subprocess.Popen(
        [sys.executable, "-c", STOPPED_WRITER, str(tmp_path), str(node)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("RELUME_")},
    )
    try:
        assert wait_until(lambda: stopped(writer.pid), 60)
        (run,) = tmp_path.glob("tj-*")
        minting.mint(run, node="other", world_size=1, now=time.time())
        os.kill(writer.pid, signal.SIGCONT)
        said, errors = writer.communicate("go on\n", timeout=60)
    finally:
        writer.kill()
        writer.wait()
    assert writer.returncode == 77 or "superseded by generation 2" in errors, (said, errors)
    assert (node / run.name / "step-00000001.g1" / "rank-00000.json").exists()
    assert local_steps(run) == []
    assert minting.mint(run, node="other", world_size=1, now=time.time()).accepted_local == ()


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_counts_after_a_kill_is_whole_on_its_nodes(fork_server: ForkServer, tmp_path: Path, seed: int) -> None:
    """Two nodes, copies on each other, a save at every step: at a random moment a rank or all of them are killed."""
    dice = random.Random(seed)
    world = World(fork_server, tmp_path)
    world.nodes = 2
    env = {"RELUME_LOCAL": str(tmp_path / "{node}"), "RELUME_LOCAL_EVERY": "1", "RELUME_PEER": "1"}
    for _ in range(2):
        ranks = world.tiny(2, total=200, epochs=50, every=5, asynchronous=bool(seed % 2), env=env)
        wait_until(lambda: len(local_names(world.run)) > 0, 60)
        time.sleep(dice.uniform(0.0, 1.0))
        seen = local_names(world.run)[:1]
        for pid in [*dice.choice([[], ranks.pids[:1], ranks.pids[1:]]), *ranks.pids]:
            os.kill(pid, signal.SIGKILL)
        ranks.wait()
        committing.commit_complete(world.run, now=time.time())  # as the next attempt does before it looks
        names = local_names(world.run)
        assert names and names[0] >= seen[0], "what counted before the kill, or what came after it"
        for name in names:
            for ref in generations.read_manifest(world.run / "local" / name).ranks:
                holders = [node for node in ("gpu1", "gpu2") if holds(tmp_path / node / world.run.name / name, ref)]
                said = generations.read_rank_file(world.run / "local" / name, ref.rank).saving
                assert said["node"] in holders, f"seed {seed}: {name}, rank {ref.rank}"
                assert said["copy"] is None or said["copy"] in holders, f"seed {seed}: {name}, rank {ref.rank}"


def local_names(run: Path) -> list[str]:
    return generations.accepted_folders(run, LOCAL) if run.exists() else []


def holds(folder: Path, ref: Any) -> bool:
    path = folder / ref.file
    return path.exists() and file_digest(path, algorithm_of(ref.digest)) == ref.digest and intact(folder, ref.rank)


def intact(folder: Path, rank: int) -> bool:
    files = generations.read_rank_file(folder, rank).files
    return all(file_digest(folder / entry.name, algorithm_of(entry.digest)) == entry.digest for entry in files)
