"""What one whole poll of a large Slurm costs, beside the two commands that nobody can do without.

`sudo python benchmarks/slurm_read.py --json [--nodes N] [--jobs N] [--running N] [--polls N] [--dir DIR]`

A poll is what the controller does every two seconds: the commands, reading what they print, and storing the rows
through `controller.snapshot.poll.poll` in SQLite. Its CPU time (user and system, of the process and its children) is
divided by that of the commands `scontrol show nodes -o; squeue -o` alone, measured in turn with it. Medians; the last
line is JSON:

- `poll_cpu_vs_commands`: that ratio, once the process has polled before; `first_poll_cpu_vs_commands`: of the very
  first poll of a process with an empty database, which parses and writes everything,
- `changing_cpu_vs_commands`: with `changed_nodes` and `changed_jobs` changed between polls,
- `poll_peak_mb`: most memory the polling process ever held, first poll included; `commands_peak_mb`: the larger of the
  two commands,
- `slurmctld_ms_per_poll`, `slurmctld_ms_per_commands`: CPU time of slurmctld.

It needs root, because it makes a lab of its own (deploy/lab). Most of its nodes are simulated, as the result says.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
FIELDS = "%i|%T|%j|%u|%D|%R|%r|%V|%S|%p"
CHANGED_NODES, CHANGED_JOBS = 100, 50
TICK = os.sysconf("SC_CLK_TCK")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the result as JSON (it always is; for symmetry)")
    parser.add_argument("--nodes", type=int, default=10_000, help="all of them, the real ones included")
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--running", type=int, default=256, help="of the jobs; the others are held")
    parser.add_argument("--polls", type=int, default=15)
    parser.add_argument("--dir", type=Path, help="where the lab is made (default: /var/tmp)")
    parser.add_argument("--poll-only", metavar="CONF", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.poll_only:
        print(json.dumps(Poller(options.poll_only).measured(options.polls)))
        return 0
    print(json.dumps(whole(options)))
    return 0


def whole(options: argparse.Namespace) -> dict[str, Any]:
    """Makes the cluster, measures in a fresh process, removes the cluster."""
    from benchmarks import big_slurm
    from deploy.lab.cluster import Lab

    lab = Lab.up(options.dir)
    try:
        real = len(lab.names)
        big_slurm.enlarge(lab, options.nodes)
        big_slurm.submit(lab, options.running, options.jobs - options.running)
        argv = [sys.executable, __file__, "--poll-only", lab.conf, "--polls", str(options.polls)]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=1800, cwd=ROOT)
        measured = json.loads(done.stdout.splitlines()[-1])
    finally:
        lab.down()
    return {
        "what": f"a real slurmctld; {real} nodes have a slurmd, {options.nodes - real} are simulated (no slurmd)",
        "nodes": options.nodes,
        "nodes_simulated": options.nodes - real,
        "jobs": options.jobs,
        "jobs_running_share": round(options.running / options.jobs, 3),
        **measured,
    }


class Poller:
    """The process that polls. `conf` is the cluster's slurm.conf."""

    def __init__(self, conf: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="relume-bench-")
        os.environ |= {"DATABASE_URL": f"sqlite:///{self.folder.name}/bench.sqlite3", "RELUME_HOME": self.folder.name}
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controller.settings")
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", "--noinput", "-v0", "--skip-checks")
        from controller import clock
        from controller.models import Cluster
        from controller.slurm.cli import CliSlurm
        from controller.slurm.parse_site import parse_config
        from controller.slurm.runner import Runner, slurm_env

        self.environment = slurm_env(os.environ, conf)
        self.slurm = CliSlurm(clock.utcnow, reader=Runner(env=self.environment))
        self.now = clock.now
        config = parse_config(self.printed("scontrol", "show", "config"))
        self.version = config["SLURM_VERSION"]
        self.slurmctld = int(Path(config["SlurmctldPidFile"]).read_text())
        self.cluster = Cluster.objects.create(name=config["ClusterName"])

        self.commands_peak_mb = 0.0

    def measured(self, polls: int) -> dict[str, Any]:
        first = cpu_of(self.poll)
        self.poll()
        plain, commands, changing = [], [], []
        ctld = {"poll": 0.0, "commands": 0.0}
        for _ in range(polls):
            before = self.slurmctld_seconds()
            commands.append(cpu_of(self.commands, own=False))
            between = self.slurmctld_seconds()
            plain.append(cpu_of(self.poll))
            ctld["commands"] += between - before
            ctld["poll"] += self.slurmctld_seconds() - between
        for turn in range(polls):
            self.change(turn)
            changing.append(cpu_of(self.poll))
        base = statistics.median(commands)
        return {
            "slurm": self.version,
            "polls": polls,
            "poll_cpu_vs_commands": round(statistics.median(plain) / base, 2),
            "poll_peak_mb": round(peak_mb(os.getpid()), 1),
            "first_poll_cpu_vs_commands": round(first / base, 2),
            "changing_cpu_vs_commands": round(statistics.median(changing) / base, 2),
            "changed_nodes": CHANGED_NODES,
            "changed_jobs": CHANGED_JOBS,
            "poll_cpu_ms": round(statistics.median(plain) * 1e3, 1),
            "first_poll_cpu_ms": round(first * 1e3, 1),
            "commands_cpu_ms": round(base * 1e3, 1),
            "commands_peak_mb": round(self.commands_peak_mb, 1),
            "slurmctld_ms_per_poll": round(ctld["poll"] / polls * 1e3, 1),
            "slurmctld_ms_per_commands": round(ctld["commands"] / polls * 1e3, 1),
        }

    def poll(self) -> None:
        from controller.snapshot import poll

        if not poll.poll(self.cluster, self.slurm, self.now()):
            raise SystemExit(f"no view was stored: {self.cluster.view_error}")

    def commands(self) -> None:
        """What is divided by: their output is drained and thrown away."""
        for argv in (("scontrol", "show", "nodes", "-o"), ("squeue", "--noheader", f"--format={FIELDS}")):
            with subprocess.Popen(argv, env=self.environment, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                while process.stdout.read(1 << 20):
                    self.commands_peak_mb = max(self.commands_peak_mb, peak_mb(process.pid))
            if process.returncode:
                raise SystemExit(f"{argv[0]} failed")

    def change(self, turn: int) -> None:
        """Nodes get another state, held jobs another comment."""
        state = "State=DRAIN" if turn % 2 == 0 else "State=UNDRAIN"
        self.printed("scontrol", "update", f"NodeName=big[00001-{CHANGED_NODES:05d}]", state, f"Reason=turn {turn}")
        held = self.printed("squeue", "--noheader", "--states=PENDING", "--format=%A").split()
        for job_id in held[:CHANGED_JOBS]:
            self.printed("scontrol", "update", f"JobId={job_id}", f"Comment=turn {turn}")

    def printed(self, *argv: str) -> str:
        done = subprocess.run(argv, env=self.environment, check=True, timeout=60, capture_output=True, text=True)
        return done.stdout

    def slurmctld_seconds(self) -> float:
        fields = Path(f"/proc/{self.slurmctld}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK


def cpu_of(call: Callable[[], None], *, own: bool = True) -> float:
    """Seconds of the children that ended meanwhile, and of this process."""
    before = _cpu(own)
    call()
    return _cpu(own) - before


def _cpu(own: bool) -> float:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN) if own else (resource.RUSAGE_CHILDREN,)
    usages = [resource.getrusage(one) for one in who]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_mb(pid: int) -> float:
    """Most memory it ever had resident; 0 when it has just ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


if __name__ == "__main__":
    started = time.monotonic()
    code = main(sys.argv[1:])
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    sys.exit(code)
