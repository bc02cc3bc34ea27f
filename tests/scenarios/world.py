"""A whole controller on the in-memory Slurm: real rows, an injected clock, agents that speak once a second.

Each tick of one second: agents that live speak and answer the probes they were asked for, then a sweep, then actions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from controller.clock import aware
from controller.decision.policy import Policy
from controller.ingest.receive import Received
from controller.ingest.sense import receive_sense
from controller.knowledge.load import load as load_knowledge
from controller.models import (
    Action,
    AgentReport,
    Attempt,
    Cluster,
    Incident,
    Node,
    NodeCheck,
    NodeSensor,
    Sign,
    TrainingJob,
)
from controller.remediation.executor import run_actions
from controller.site import Site
from controller.slurm.fake import FakeSlurm
from controller.slurm.fake_rules import FakeOptions
from controller.slurm.fake_world import FakeJob
from controller.slurm.port import SlurmPort
from controller.slurm.reach import Outcome, Target
from controller.sweep import Swept, sweep
from tests.builders import RUN_ID
from worker_hooks.protocol.sense import decode_sense

START = 1_796_000_000.0
NODES = ("gpu1", "gpu2", "gpu3", "gpu4")
PORT = 6818


@dataclass
class World:
    """State what differs: `silent_agents` do not speak, `dark` hosts answer nobody, `refusing` ones have no slurmd,
    `controller_cut` hears nobody."""

    now: float = START
    policy: Policy = field(default_factory=lambda: Policy(mode="act", knowledge=load_knowledge()))
    slurm: FakeSlurm = field(init=False)
    port: SlurmPort = field(init=False)
    job_id: str = ""
    silent_agents: set[str] = field(default_factory=set)
    dark: set[str] = field(default_factory=set)
    refusing: set[str] = field(default_factory=set)
    dark_from_controller: set[str] = field(default_factory=set)
    controller_cut: bool = False
    resume_step: int = 90
    auto_resume: bool = True
    swept: list[Swept] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slurm = FakeSlurm(lambda: aware(self.now), options=FakeOptions(too_quick_start=1.5))
        self.port = self.slurm
        self.add_nodes(len(NODES))

    # --- what tests set up

    def add_nodes(self, count: int) -> None:
        """So many nodes in all: gpu1, gpu2 and so on."""
        for index in range(len(self.names), count):
            self.names.append(f"gpu{index + 1}")
            self.slurm.add_nodes(self.names[-1], address=f"10.77.0.{index + 1}", port=PORT)

    def start(self, num_nodes: int = 2, **job: Any) -> TrainingJob:
        """A training job on gpu1 and gpu2 (and on), training at step 100, watched for a while."""
        self.job_id = self.slurm.submit(num_nodes=num_nodes, **job)
        self.slurm.tick()
        cluster = Cluster.objects.get_or_create(name="fake")[0]
        row = TrainingJob.objects.create(
            run_id=RUN_ID,
            name="mosaic",
            owner="ada",
            cluster=cluster,
            slurm_job_id=self.job_id,
            state_at=aware(self.now),
            created_at=aware(self.now),
            gpus=16,
        )
        self.attempt(row, 1, 0, step=100, first_new_step_at=aware(self.now))
        self.run(6)
        row.refresh_from_db()
        assert row.state == "training", row.state_reason
        return row

    def attempt(self, job: TrainingJob, generation: int, restarts: int, **columns: Any) -> Attempt:
        at = aware(self.now)
        quiet = {
            "slurm_job_id": self.job_id,
            "nodes": list(self.slurm_job().nodes),
            "world_size": 4,
            "created_at": at,
            "launched_at": at,
            "first_step_at": at,
            "start_step": 0,
            "step_at": at,
        }
        columns = {**quiet, **columns}
        made = Attempt.objects.create(training_job=job, generation=generation, restart_count=restarts, **columns)
        for name in made.nodes:
            AgentReport.objects.create(
                attempt=made, node=name, received_at=at, sent_at=at, state="running", leader=name == made.nodes[0]
            )
        return made

    @property
    def site(self) -> Site:
        return Site(
            port=self.port,
            policy=self.policy,
            clock=lambda: self.now,
            probe=self.probe,
            sleep=self.advance,
            owner="tests",
            slurm_user="slurm",
            cluster_name="fake",
        )

    def set_policy(self, **sections: Any) -> None:
        self.policy = replace(self.policy, **sections)

    # --- signs

    def sense(self, node: str, *signs: dict[str, Any], readers: dict[str, str] | None = None, **keys: Any) -> Received:
        """One message of that node's sensor, now. A sign: `{"code", "raw", "attrs", "at"}`; the code must be there."""
        cluster = Cluster.objects.get(name="fake")
        made = {"created_at": aware(self.now)}
        sensor = NodeSensor.objects.get_or_create(cluster=cluster, node=node, defaults=made)[0]
        first = dict(sensor.streams).get("s1", 0) + 1
        quiet = {"kind": "sign", "layer": "kernel", "source": "kernel", "at": self.now, "attrs": {}}
        records = [
            {**quiet, "raw": f"the line of {sign['code']}", **sign, "seq": seq} for seq, sign in enumerate(signs, first)
        ]
        body = {"protocol": 1, "node": node, "stream": "s1", "boot_id": "b1", "sent_at": self.now, "version": "1"}
        body |= {"started_at": START, "clock_offset_s": 0.0, "readers": readers or {"kernel": "ok"}}
        return receive_sense(sensor, decode_sense(body | keys | {"records": records}), self.now)

    def job_sign(self, node: str, code: str, rank: int | None = None, layer: str = "process", **columns: Any) -> Sign:
        """What an agent of the newest attempt read in its job's log."""
        attempt = Attempt.objects.order_by("-generation")[0]
        quiet: dict[str, Any] = {"source": "job_log", "raw": f"the line of {code}", "observed_at": aware(self.now)}
        quiet |= {"received_at": aware(self.now), "order": 0, "reporter": node, "origin": "job", "layer": layer}
        return Sign.objects.create(
            cluster=attempt.training_job.cluster,
            attempt=attempt,
            node=node,
            code=code,
            rank=rank,
            seq=Sign.objects.count() + 1,
            **(quiet | columns),
        )

    # --- time

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def run(self, seconds: float, *, actions: bool = True) -> None:
        end = self.now + seconds
        while self.now < end:
            self.tick(actions=actions)

    def tick(self, *, actions: bool = True) -> None:
        self.now += 1.0
        self.agents_speak()
        self.swept.append(sweep(self.site))
        if actions:
            run_actions(self.site)
            self.follow_slurm()

    # --- the cluster's side

    def kill_host(self, name: str) -> None:
        """A dead host: its agent is silent, nobody reaches it, its slurmd is gone."""
        self.slurm.kill_host(name)
        self.silent_agents.add(name)
        self.dark.add(name)

    def slurm_job(self) -> FakeJob:
        with self.slurm.world() as world:
            return world.jobs[self.job_id]

    def agents_speak(self) -> None:
        """Agents of the newest attempt whose host lives and whose job runs, unless the controller hears nobody."""
        job = self.slurm_job()
        if self.controller_cut or job.base != "RUNNING" or job.completing:
            return
        newest = Attempt.objects.order_by("-generation").first()
        if newest is None or newest.restart_count != job.restarts:
            return
        speaking = AgentReport.objects.filter(attempt=newest).exclude(node__in=self.silent_agents)
        speaking.update(received_at=aware(self.now), sent_at=aware(self.now))
        for check in NodeCheck.objects.filter(
            vantage__in=speaking.values_list("node", flat=True), answered_at=None, asked_at__gt=aware(self.now - 10)
        ).select_related("node"):
            check.answered_at, check.outcome = aware(self.now), self._seen(check.node.name)
            check.save()

    def follow_slurm(self) -> None:
        """A job that runs again has a new attempt, which resumes at `resume_step`."""
        job = self.slurm_job()
        newest = Attempt.objects.order_by("-generation").first()
        if job.base != "RUNNING" or job.completing or newest is None or not self.auto_resume:
            return
        if newest.restart_count < job.restarts:
            columns = {"start_step": self.resume_step, "step": self.resume_step, "first_step_at": None}
            self.attempt(newest.training_job, newest.generation + 1, job.restarts, **columns)

    def resume_trains(self, outcome: str = "PASS") -> None:
        """The newest attempt's ranks verify, replay and make a new step."""
        newest = Attempt.objects.order_by("-generation")[0]
        check = {"name": "parameters", "outcome": outcome, "expected": "crc32:01", "actual": "crc32:01"}
        stage = {"outcome": outcome, "checks": [check]}
        newest.checks = {str(rank): {"before_first_step": stage, "replay": stage} for rank in range(4)}
        newest.first_step_at = newest.first_new_step_at = aware(self.now)
        newest.step = 101
        newest.save()

    def probe(self, targets: Sequence[Target], limit_s: float) -> list[Outcome]:
        names = {f"10.77.0.{index + 1}": name for index, name in enumerate(self.names)}
        seen = [self._seen(names[t.address], controller=True) for t in targets]
        self.now += limit_s if "timeout" in seen else 0.01
        return seen

    def _seen(self, name: str, *, controller: bool = False) -> Outcome:
        if name in self.dark or (controller and (self.controller_cut or name in self.dark_from_controller)):
            return "timeout"
        return "refused" if name in self.refusing else "open"

    # --- what tests look at

    def effects(self, *kinds: str) -> list[str]:
        return [f"{e.kind} {e.target}" for e in self.slurm.effects() if not kinds or e.kind in kinds]

    def incident(self) -> Incident:
        return Incident.objects.get()

    def job(self) -> TrainingJob:
        return TrainingJob.objects.get(run_id=RUN_ID)

    def action(self, kind: str) -> Action:
        return Action.objects.get(kind=kind)

    def node(self, name: str) -> Node:
        return Node.objects.get(name=name)
