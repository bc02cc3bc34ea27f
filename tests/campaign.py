"""The long lanes: `make campaign`. Seeded, and its log is committed under docs/campaigns with its revision.

Parts: `kill-walk` (every moment, on the in-memory Slurm and on the real one), `disturbances` (the promised durations:
60 s, 60 s, 3 minutes), `requeue-loop` (one job requeued 200 times on the real Slurm, none lost), `lab-removal` (`up`
killed at many moments), `floods` (a million Xid lines), `checkpoint-kills` (500 runs on two ranks), `identity` (killed
at each of 60 steps, in six worlds), `damage` (every file of a run's folder in every way), `demos` (the whole story N
times, with what each took). Name parts to run only those.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
BESIDE = ["-n", "auto"]  # a core each: a killed rank mostly waits for a disk or another rank
WHOLE = "tests/cluster/test_training_real.py"


class Campaign:
    """Prints and keeps every line; `failed` says whether a part did not hold."""

    def __init__(self, log: Path, demos: int) -> None:
        self.log, self.demos, self.failed = log, demos, False
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

    def say(self, text: str) -> None:
        print(text, flush=True)
        with self.log.open("a") as file:
            file.write(text + "\n")

    def run(self, name: str, argv: list[str], timeout_s: int) -> str:
        """One command, its last lines into the log; marks the campaign failed on any other exit than 0."""
        started = time.monotonic()
        env = os.environ | {"RELUME_FULL": "1"}
        try:
            done = subprocess.run(
                argv, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=timeout_s, check=False,
            )  # fmt: skip
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            code, output = 124, str(error.stdout or "")
        self.failed |= code != 0
        self.say(f"{name}: exit {code} after {time.monotonic() - started:.0f} s")
        for line in output.splitlines()[-3 if code == 0 else -40 :]:
            self.say(f"    {line[:400]}")
        return output


def kill_walk(campaign: Campaign) -> None:
    campaign.run("kill walk, every moment, in-memory Slurm", [*PYTEST, "tests/controller/test_kill_walk.py"], 3600)
    campaign.run("kill walk, real Slurm", [*PYTEST, "tests/cluster/test_kill_walk_real.py"], 3600)


def disturbances(campaign: Campaign) -> None:
    for name in ("nothing_happens", "cut_off"):
        campaign.run(f"the whole, {name}", [*PYTEST, "-k", name, WHOLE], 1800)


def requeue_loop(campaign: Campaign) -> None:
    files = [f"tests/cluster/test_requeue_{name}_real.py" for name in ("answers", "nodes")]
    argv = [*PYTEST, "-rP", "--timeout=3600", "-k", "no_job_is_lost or minutes_are_over", *files]
    output = campaign.run("one job requeued again and again, and a reservation that ends", argv, 3600)
    for line in output.splitlines():
        if "requeues: median" in line:
            campaign.say(f"    {line}")


def lab_removal(campaign: Campaign) -> None:
    campaign.run("labs whose making was killed", [*PYTEST, "--timeout=1800", "tests/cluster/test_lab_removal.py"], 1800)


def floods(campaign: Campaign) -> None:
    campaign.run("a million Xid lines", [*PYTEST, "tests/worker_hooks/test_xid_flood.py"], 3000)


def checkpoint_kills(campaign: Campaign) -> None:
    files = ("test_checkpoint_kills.py", "test_local_failures.py")
    argv = [*PYTEST, *BESIDE, "--timeout=1800", *(f"tests/worker_hooks/{name}" for name in files)]
    campaign.run("500 runs killed at random moments of saving, committing, pruning and loading", argv, 7200)


def identity(campaign: Campaign) -> None:
    argv = [*PYTEST, *BESIDE, "--timeout=1800", "tests/worker_hooks/test_identity_every_step.py"]
    campaign.run("killed at each of 60 steps, on 1, 2 and 4 ranks with 0 and 2 loader workers", argv, 10800)


def damage(campaign: Campaign) -> None:
    argv = [*PYTEST, *BESIDE, "--timeout=1800", "tests/worker_hooks/test_damage_matrix.py"]
    campaign.run("every file of a run's folder, damaged in every way", argv, 3600)


def demos(campaign: Campaign) -> None:
    """The demonstration again and again: each must be verified and bit-identical; the times are told, not judged."""
    rto, requeue = [], []
    for number in range(1, campaign.demos + 1):
        victim = "batch" if number % 2 == 0 else "worker"
        output = campaign.run(
            f"demo {number}, {victim}", [sys.executable, "-m", "deploy.demo", "--once", "--victim", victim], 900
        )
        try:
            report = json.loads(output.splitlines()[-1])
        except (ValueError, IndexError):
            continue
        if report.get("rto_s") is not None:
            campaign.say(f"    rto {report['rto_s']} s, requeue confirmed {report['requeue_confirmed_s']} s")
            rto.append(report["rto_s"])
            requeue.append(report["requeue_confirmed_s"])
    if rto:
        campaign.say(
            f"kill to first new step: median {statistics.median(rto):.1f} s, most {max(rto):.1f} s of {len(rto)}"
        )
        campaign.say(f"kill to confirmed requeue: median {statistics.median(requeue):.1f} s, most {max(requeue):.1f} s")


PARTS: dict[str, Callable[[Campaign], None]] = {
    "kill-walk": kill_walk,
    "disturbances": disturbances,
    "requeue-loop": requeue_loop,
    "lab-removal": lab_removal,
    "floods": floods,
    "checkpoint-kills": checkpoint_kills,
    "identity": identity,
    "damage": damage,
    "demos": demos,
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--demos", type=int, default=5)
    parser.add_argument("--log", type=Path, default=ROOT / "var" / "campaign.log")
    args = parser.parse_args(argv)
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    campaign = Campaign(args.log, args.demos)
    revision = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
    )
    campaign.say(
        f"revision {revision.stdout.strip() or 'unknown'}, Python {platform.python_version()}, {os.cpu_count()} cores"
    )
    for name in args.parts or PARTS:
        PARTS[name](campaign)
    campaign.say("campaign: FAILED" if campaign.failed else "campaign: everything held")
    return 1 if campaign.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
