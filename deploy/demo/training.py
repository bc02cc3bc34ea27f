"""The demonstration's training job: its batch script, its submission through `relume sbatch`, what it left behind."""

import hashlib
import json
import pwd
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.demo.site_folder import Site
from deploy.lab.cluster import Lab
from worker_hooks.protocol.losses import read_losses


@dataclass(frozen=True)
class Plan:
    """The size of the training job. 120 steps of about 0.15 s on 2 cores as it stands."""

    nodes: int = 2
    ranks_per_node: int = 2
    epochs: int = 3
    steps_per_epoch: int = 40
    batch: int = 8
    checkpoint_every: int = 25

    @property
    def world(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch


SCRIPT = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes} --ntasks-per-node=1 --exclusive --gres=gpu:{ranks}
#SBATCH --output={folder}/slurm-%j.log
#RELUME name={name}
#RELUME checkpoint-root={folder}/checkpoints
export PATH={site}/bin:$PATH PYTHONPATH={code} PYTHONUNBUFFERED=1
# The lab's nodes claim more CPUs than this machine has: threads by that number would spend their time waiting.
export OMP_NUM_THREADS=1
{sabotage}srun --kill-on-bad-exit=1 relume run --ranks {ranks} --interface {interface} -- \\
    {python} {code}/examples/gpt.py --epochs {epochs} --samples {samples} --batch {batch} \\
    --checkpoint-every {every} --report {folder}/report.json
"""


@dataclass(frozen=True)
class Job:
    run_id: str
    slurm_job_id: str
    folder: Path
    plan: Plan

    @property
    def run_folder(self) -> Path:
        return self.folder / "checkpoints" / self.run_id

    def log(self) -> str:
        path = self.folder / f"slurm-{self.slurm_job_id}.log"
        return path.read_text(errors="replace") if path.exists() else ""


def submit(lab: Lab, site: Site, name: str, plan: Plan, sabotage: str = "") -> Job:
    """`relume sbatch` as the lab's job owner. `sabotage` takes effect in restarted attempts only."""
    owner = lab.users["owner"]
    folder = Path(pwd.getpwnam(owner).pw_dir) / name
    folder.mkdir()
    spoil = f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || export RELUME_SABOTAGE={sabotage}\n' if sabotage else ""
    script = folder / f"{name}.sbatch"
    script.write_text(
        SCRIPT.format(
            name=name, nodes=plan.nodes, ranks=plan.ranks_per_node, folder=folder, site=site.folder, code=site.code,
            python=site.python, epochs=plan.epochs, samples=plan.steps_per_epoch * plan.world * plan.batch,
            batch=plan.batch, every=plan.checkpoint_every, sabotage=spoil,
            interface="eth1" if lab.state.mode == "netns" else "lo",
        )
    )  # fmt: skip
    for path in (folder, script):
        shutil.chown(path, owner, owner)
    _put_relume_on_the_path(site)
    path = f"{site.folder}/bin:/usr/local/bin:/usr/bin:/bin"
    env = {**site.environment, "PATH": path, "RELUME_STATE_DIR": str(folder / "state")}
    done = lab.run("relume", "sbatch", str(script), user="owner", cwd=folder, env=env)
    return Job(_run_id(folder), done.stdout.split()[-1], folder, plan)


def _put_relume_on_the_path(site: Site) -> None:
    """The `relume` command of this site: the environment's own script would point at the checkout."""
    command = site.folder / "bin" / "relume"
    if not command.exists():
        command.parent.mkdir(mode=0o755)
        command.write_text(f'#!/bin/sh\nexec {site.python} -m worker_hooks "$@"\n')
        command.chmod(0o755)


def _run_id(folder: Path) -> str:
    """The wrapper's identity file names the run; this submission has a state folder of its own."""
    (identity,) = (folder / "state" / "identities").glob("tj-*.json")
    return str(json.loads(identity.read_text())["run_id"])


@dataclass(frozen=True)
class Outcome:
    """What a finished run left: the kept loss of every rank at every step, and the digest of the final parameters."""

    losses: dict[str, dict[int, str]]
    parameters_digest: str
    file: Path
    digest: str

    @property
    def steps(self) -> int:
        return min((len(curve) for curve in self.losses.values()), default=0)

    def summary(self) -> dict[str, Any]:
        return {
            "losses": str(self.file),
            "losses_digest": self.digest,
            "parameters_digest": self.parameters_digest,
            "steps": self.steps,
        }


def outcome(job: Job, keep: Path) -> Outcome:
    """Reads a finished job's folder; the loss file is copied to `keep`, which outlives the lab. Raises OSError."""
    losses = {str(rank): read_losses(job.run_folder, rank) for rank in range(job.plan.world)}
    text = json.dumps(losses, sort_keys=True)
    keep.mkdir(parents=True, exist_ok=True)
    file = keep / f"{job.folder.name}-losses.json"
    file.write_text(text + "\n")
    file.chmod(stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH)
    report = json.loads((job.folder / "report.json").read_text())
    digest = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    return Outcome(losses, str(report["parameters_digest"]), file, digest)


def host_of_rank_zero(lab: Lab, slurm_job_id: str) -> str:
    """The node that runs the batch script: losing it is another story than losing a worker."""
    done = lab.run("scontrol", "show", "job", slurm_job_id, "-o", user="controller")
    fields = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
    return fields["BatchHost"]
