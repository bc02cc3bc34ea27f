"""Run as one of the lab's users: finds out that user's rights, or uses them, and prints JSON. Standard library only,
because the users of a lab need not be able to enter the checkout's environment.

Argument: {"conf", "jobs": prefix, "nodes": prefix, "kill_at": call, "act": {"node", "job", "running", "owner"}}; all
but the first are optional.
"""

import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from controller.errors import SlurmRefused
from controller.slurm.calls import TimeLimits
from controller.slurm.cli import CliSlurm
from controller.slurm.rights import Identities, Identity, find_out
from controller.slurm.run_as import parse
from controller.slurm.runner import Completed, Runner, slurm_env

LIMITS = TimeLimits(batch=8, read=5, write=8)
calls = 0


@dataclass(frozen=True)
class Mortal(Runner):
    """SIGKILL to ourselves as soon as the call of that number was started; the call itself goes on."""

    kill_at: int = 0

    def run(self, argv: Sequence[str], timeout: float) -> Completed:
        global calls
        calls += 1
        if calls == self.kill_at:
            quiet = subprocess.DEVNULL
            subprocess.Popen(self._command(argv), env=dict(self.env), stdin=quiet, stdout=quiet, stderr=quiet)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(argv, timeout)


def now() -> datetime:
    return datetime.now(UTC)


def act(port: CliSlurm, on: dict[str, str]) -> list[str]:
    """What each call that changes something did, by name."""
    tried = {
        "drain": lambda: port.drain_node(on["node"], "relume:abc incident 5: Node lost"),
        "resume": lambda: port.resume_node(on["node"]),
        "reserve": lambda: port.reserve_nodes("relume-try", [on["node"]], user=on["owner"], minutes=1),
        "delete": lambda: port.delete_reservation("relume-try"),
        "exclude": lambda: port.exclude_nodes(on["job"], [on["node"]]),
        "hold": lambda: port.hold_job(on["job"]),
        "release": lambda: port.release_job(on["job"]),
        "requeue": lambda: port.requeue_job(on["running"], hold=True),
    }
    done = []
    for name, call in tried.items():
        try:
            call()
        except SlurmRefused as refused:
            print(f"{name}: {refused.kind} {refused}", file=sys.stderr)
        else:
            done.append(name)
    return done


def main(asked: dict[str, Any]) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    env, kill_at = slurm_env(os.environ, asked["conf"]), asked.get("kill_at", 0)

    def identity(prefix: str) -> Identity:
        run_as = parse(prefix) if prefix else None
        runner = Mortal(env=env, run_as=run_as.argv if run_as else (), kill_at=kill_at)
        return Identity(run_as.user if run_as else me, runner, run_as)

    who = Identities(me, identity(""), identity(asked.get("jobs", "")), identity(asked.get("nodes", "")))
    port = CliSlurm(now, who.reader.runner, job_writer=who.jobs.runner, node_writer=who.nodes.runner, limits=LIMITS)
    answer: dict[str, Any] = {"found": find_out(who, LIMITS, now, own_conf=True)}
    if "act" in asked:
        answer["done"] = act(port, asked["act"])
    answer["calls"] = calls
    print(json.dumps(answer))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
