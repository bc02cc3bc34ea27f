"""The controller on the real lab: real Slurm, real probes, real clock; the agents of a plain batch job are rows that
this file keeps speaking while their host lives, and their probes are real connects from inside the node."""

import pwd
import time
from dataclasses import dataclass, field

from controller import clock
from controller.clock import aware
from controller.decision import actions
from controller.decision.actions import ACTION
from controller.decision.policy import Policy
from controller.decision.propose import Proposal
from controller.ledger import records
from controller.models import Action, AgentReport, Attempt, Cluster, Incident, NodeCheck, TrainingJob
from controller.remediation.executor import run_actions
from controller.site import Site
from controller.slurm import reach
from controller.slurm.cli import CliSlurm
from controller.slurm.runner import Runner, slurm_env
from controller.slurm.views import JobView
from controller.snapshot import poll
from controller.sweep import sweep
from controller.wiring import LIMITS
from deploy.lab.cluster import Lab
from tests.builders import RUN_ID

SCRIPT = "#!/bin/sh\nsrun sleep 600\n"
WHOLE_NODE = "--gres=gpu:8"
PROBE = """import socket, sys
try: socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close(); print("open")
except ConnectionRefusedError: print("refused")
except TimeoutError: print("timeout")
except OSError: print("unreachable")
"""


def slurm_of(lab: Lab, rank: str = "controller") -> CliSlurm:
    """As one of the lab's users; its controller is SlurmUser and not root."""
    user = pwd.getpwnam(lab.users[rank])
    become = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    return CliSlurm(clock.utcnow, reader=Runner(env=slurm_env({}, lab.conf), run_as=become), limits=LIMITS)


def site_of(lab: Lab, owner: str = "lab-tests") -> Site:
    return Site(
        port=slurm_of(lab),
        policy=Policy(mode="act"),
        clock=clock.now,
        probe=reach.probe,
        sleep=time.sleep,
        owner=owner,
        slurm_user=lab.users["controller"],
    )


@dataclass
class LabWorld:
    lab: Lab
    silent: set[str] = field(default_factory=set)
    job_id: str = ""

    def __post_init__(self) -> None:
        self.site = site_of(self.lab)
        self.slurm = self.site.port

    def submit(self, *options: str, user: str = "owner", script: str = SCRIPT) -> str:
        home = self.lab.dir / "home" / user
        argv = ["sbatch", "--parsable", "-o", "/dev/null", *options]
        return self.lab.run(*argv, stdin=script, cwd=home if home.exists() else None, user=user).stdout.strip()

    def scontrol(self, *words: str, user: str = "root") -> None:
        self.lab.run("scontrol", *words, user=user)

    # --- one requeue, ordered without a fault: what a decision would have committed

    def running(self, *options: str, script: str = SCRIPT) -> TrainingJob:
        """A job that has been running for a moment, as an enrolled training job; `job_id` is its Slurm id."""
        self.job_id = self.submit(*options, script=script)
        self.until(lambda: self.view().state.running, "the job runs")
        time.sleep(1.0)
        return self.enrol(self.job_id)

    def enrol(self, job_id: str) -> TrainingJob:
        cluster = Cluster.objects.get_or_create(name=self.slurm.read_cluster().cluster)[0]
        poll.poll(cluster, self.slurm, clock.now())
        now = clock.utcnow()
        return TrainingJob.objects.create(
            run_id=f"tj-{TrainingJob.objects.count():012x}",
            owner=self.lab.users["owner"],
            owner_confirmed=True,
            cluster=cluster,
            slurm_job_id=job_id,
            state_at=now,
            created_at=now,
        )

    def order(self, job: TrainingJob, *exclude: str) -> Action:
        """A requeue that keeps the job from `exclude`, ready to be carried out."""
        job.incidents.update(state="abandoned")
        incident = Incident.objects.create(
            cluster=job.cluster,
            training_job=job,
            state="acting",
            cause="node_down",
            summary="ordered",
            reason="ordered",
            confidence=1.0,
            budget="infrastructure",
            suspects=list(exclude),
            restarts_before=self.view().restarts,
            detected_at=clock.utcnow(),
        )
        params = {"exclude": list(exclude), "restarts_before": incident.restarts_before, "run_id": job.run_id}
        plan = actions.ActionPlan(actions.REQUEUE, job.slurm_job_id, 2, params)
        proposal = Proposal(job.run_id, "ordered", plans=(plan,))
        records.plan_actions(incident, proposal, self.site.policy, clock.now(), waits=False)
        return incident.actions.get()

    def carry_out(self, action: Action, seconds: float = 40) -> Action:
        """Until it is over, whatever its end."""
        self.until(lambda: self._turned(action), f"{action.kind} is over", seconds)
        return action

    def says(self, action: Action, words: str) -> bool:
        """Whether a turn of the executor leaves these words as its outcome."""
        run_actions(self.site)
        action.refresh_from_db()
        return words in action.outcome

    def _turned(self, action: Action) -> bool:
        run_actions(self.site)
        action.refresh_from_db()
        return action.state in ACTION.final

    def start(self, *options: str) -> TrainingJob:
        """On gpu1 and gpu2 (the first that Slurm gives on an idle lab), training and watched."""
        job_id = self.job_id = self.submit("-N2", *options)
        self.until(lambda: self.view().state.running, "the job runs")
        assert self.view().nodes == ("gpu1", "gpu2")
        row = TrainingJob.objects.create(
            run_id=RUN_ID,
            owner=self.lab.users["owner"],
            cluster=Cluster.objects.get_or_create(name=self.slurm.read_cluster().cluster)[0],
            slurm_job_id=job_id,
            state_at=clock.utcnow(),
            created_at=clock.utcnow(),
        )
        self.attempt(row)
        self.run(2.5)
        row.refresh_from_db()
        assert row.state == "training" and row.owner_confirmed
        return row

    def attempt(self, job: TrainingJob) -> Attempt:
        view, at = self.view(), clock.utcnow()
        made = Attempt.objects.create(
            training_job=job,
            generation=view.restarts + 1,
            restart_count=view.restarts,
            slurm_job_id=self.job_id,
            nodes=list(view.nodes),
            created_at=at,
            first_step_at=at,
            step=100,
            step_at=at,
            start_step=0,
        )
        for name in view.nodes:
            AgentReport.objects.create(attempt=made, node=name, received_at=at, sent_at=at, state="running")
        return made

    def view(self) -> JobView:
        found = self.slurm.read_job(self.job_id)
        assert found is not None
        return found

    def kill_node(self, which: int) -> None:
        self.lab.kill_node(which)
        self.silent.add(f"gpu{which}")

    def tick(self, *, actions: bool = True) -> None:
        self.speak()
        sweep(self.site)
        if actions:
            run_actions(self.site)

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.tick()
            time.sleep(0.3)

    def until(self, check, what: str, seconds: float = 40, *, ticking: bool = False) -> None:  # type: ignore[no-untyped-def]
        end = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < end, f"not in {seconds} s: {what}"
            if ticking:
                self.tick()
            time.sleep(0.2)

    def speak(self) -> None:
        newest = Attempt.objects.order_by("-generation").first()
        if newest is None:
            return
        reports = AgentReport.objects.filter(attempt=newest).exclude(node__in=self.silent)
        reports.update(received_at=clock.utcnow(), sent_at=clock.utcnow())
        asked = NodeCheck.objects.filter(
            vantage__in=reports.values_list("node", flat=True),
            answered_at=None,
            asked_at__gt=aware(clock.now() - 10),
        )
        for check in asked:
            argv = ("/usr/bin/python3", "-c", PROBE, check.address, str(check.port))
            check.outcome = self.lab.run(*argv, on=check.vantage).stdout.strip()
            check.answered_at = clock.utcnow()
            check.save()

    def incident(self) -> Incident:
        return Incident.objects.get()
