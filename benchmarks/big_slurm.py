"""A real slurmctld that has thousands of nodes to tell about: the lab's four nodes with a slurmd each, and simulated
ones, which are configured and have none. Slurm answers questions about both in the same way."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from deploy.lab.cluster import Lab

SLOTS_PER_CPU = 16  # of the partition in which the running jobs share the real nodes
SUBMITTERS = 2
SCRIPT = "#!/bin/sh\nexec sleep 36000\n"
NOBODY = 6999  # a port at which nothing listens


def enlarge(lab: Lab, nodes: int) -> None:
    """`nodes` in all; slurmctld is started again with them."""
    simulated = nodes - len(lab.names)
    conf = Path(lab.conf)
    head, partition, rest = conf.read_text().partition("PartitionName=train")
    conf.write_text(f"{head}{_more(lab, simulated)}{partition}{rest}")
    lab.stop_slurmctld()
    lab.start_slurmctld()
    _until(lambda: count(lab, "sinfo", "--noheader", "--all", "--Node", "--format=%N") == nodes, 60)


def _more(lab: Lab, simulated: int) -> str:
    names = f"big[00001-{simulated:05d}]"
    shape = "CPUs=192 Sockets=2 CoresPerSocket=96 ThreadsPerCore=1 RealMemory=2000000 Gres=gpu:h100:8"
    return (
        "MaxJobCount=50000\n"
        f"NodeName={names} NodeHostname={names} NodeAddr={lab.management_host} Port={NOBODY} {shape} "
        'Feature=h100,ib,rack7 Weight=10 State=DOWN Reason="simulated: no slurmd"\n'
        f"PartitionName=dense Nodes={','.join(lab.names)} OverSubscribe=FORCE:{SLOTS_PER_CPU} State=UP\n"
    )


def submit(lab: Lab, running: int, waiting: int) -> None:
    """`running` jobs that run on the real nodes, and `waiting` ones that are held; each has a record of its own."""
    script = Path(lab.dir) / "home" / "owner" / "sleep.sh"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    common = f"--parsable --output=/dev/null --comment='relume: run=7b attempt=1' {script}"
    lines = [f"sbatch -p dense -n1 -J pretrain-{i:05d} {common}" for i in range(running)]
    lines += [f"sbatch --hold -N{1 + i % 8} -J pretrain-{running + i:05d} {common}" for i in range(waiting)]
    parts = ["set -e\n" + "\n".join(f"{line} >/dev/null" for line in lines[k::SUBMITTERS]) for k in range(SUBMITTERS)]
    with ThreadPoolExecutor(SUBMITTERS) as pool:
        list(pool.map(lambda text: lab.run("sh", stdin=text, timeout=1200, cwd=script.parent), parts))
    _until(lambda: count(lab, "squeue", "--noheader", "--states=RUNNING", "--format=%A") == running, 300)


def count(lab: Lab, *argv: str) -> int:
    return len(set(lab.run(*argv, check=False).stdout.split()))


def _until(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"the cluster is not as wanted after {seconds:g} s")
        time.sleep(1.0)
