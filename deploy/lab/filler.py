"""A queue that is never empty: a process of the other user's that sees to it that some of its jobs always wait."""

from __future__ import annotations

from deploy.lab import daemons, processes
from deploy.lab.errors import LabError
from deploy.lab.slurm import run_as
from deploy.lab.state import State

JOB_NAME = "filler"
# Asks every two seconds; a squeue that fails or hangs is no reason to submit.
SCRIPT = f"""#!/bin/sh
# Keeps $1 jobs of $2 seconds pending, each for one whole node.
while :; do
    if pending=$(timeout 20 squeue -h -n {JOB_NAME} -t PENDING -o %i); then
        missing=$(($1 - $(printf '%s' "$pending" | grep -c .)))
        while [ "$missing" -gt 0 ]; do
            timeout 20 sbatch -Q -J {JOB_NAME} --exclusive -o /dev/null --wrap "exec sleep $2" || break
            missing=$((missing - 1))
        done
    fi
    sleep 2
done
"""


def start(state: State, *, jobs: int, seconds: int) -> None:
    """Replaces the filler that runs. Its jobs are short so that nodes keep becoming free, and are taken at once."""
    if not state.full:
        raise LabError("fill needs the full lab: the plain one has no other user whose jobs could wait")
    if jobs < 1 or seconds < 1:
        raise LabError(f"fill with {jobs} jobs of {seconds} s: both must be 1 or more")
    stop(state)
    script = state.path / "filler.sh"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    argv = [str(script), str(jobs), str(seconds)]
    state.filler = daemons.spawn_marked(state, "filler", argv, user=state.users["other"])
    state.save()


def stop(state: State) -> None:
    """The process first, so that nothing follows the jobs that are cancelled then."""
    running = state.filler
    if running is None:
        return
    processes.end_all(lambda: processes.tree(running))
    state.filler = None
    state.save()
    mine = ["scancel", "-n", JOB_NAME, "-u", state.users["other"]]
    run_as(state, mine, user="controller", check=False)
