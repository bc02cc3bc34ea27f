"""A cluster with a story: a training job of three attempts, verified after its last one, and others in every state."""

from __future__ import annotations

from datetime import datetime, timedelta

from controller.models import (
    AgentReport,
    Attempt,
    Checkpoint,
    Incident,
    NodeCheck,
    NodeHold,
    Recovery,
    TrainingJob,
)
from tests.dashboard.neighbours import neighbours
from tests.dashboard.rows import (
    HOSTILE,
    NOW,
    action,
    attempt,
    checks,
    cluster,
    evidence,
    job,
    nodes,
    points,
    stamps,
)


class Story:
    """What the tests and the pictures look at: `main` is the job with three attempts."""

    def __init__(self, now: datetime = NOW, owner: str = "ada", scale: float = 1.0) -> None:
        self.now, self.owner, self.scale = now, owner, scale
        self.cluster = cluster(now)
        self.nodes = nodes(self.cluster, now)
        self.main = self._main()
        self._gpu_incident()
        self.incident = self._network_incident()
        self._reports()
        self._checkpoints()
        self.others = neighbours(self.cluster, owner, now)

    def _step(self, step: int) -> int:
        return round(step * self.scale)

    def _main(self) -> TrainingJob:
        now = self.now
        main = job(
            self.cluster,
            "tj-4f2a9c0b11de",
            self.owner,
            now,
            name="mosaic-7b-pretrain",
            created_at=now - timedelta(hours=22, minutes=15, seconds=24),
            state_at=now - timedelta(hours=1, minutes=3),
            step=self._step(48210),
            step_at=now - timedelta(seconds=2),
            total_steps=self._step(120000),
            gpus=128,
            slurm_job_id="771204",
        )
        begins = [now - timedelta(seconds=s) for s in (79276, 48494, 4313)]
        names = [f"gpu-{n:04}" for n in range(410, 428)]
        plan = [
            (1, 0, 19412, "node_lost", "gpu-0417"),
            (2, 18000, 45768, "node_lost", "gpu-0422"),
            (3, 45500, 48210, "", ""),
        ]
        self.attempts = []
        out: list[str] = []
        for (n, start, last, outcome, lost), begin in zip(plan, begins, strict=True):
            start, last = self._step(start), self._step(last)
            ended = begins[n] - timedelta(seconds=60) if n < 3 else None
            until = (ended or now) - timedelta(seconds=2 if n == 3 else 29)
            first = begin + timedelta(seconds=42)
            step_s = (until - first).total_seconds() / (last - start - 1)
            new = first if n == 1 else first + timedelta(seconds=(self._step({2: 1412, 3: 268}[n])) * step_s)
            made = attempt(
                main,
                n,
                begin,
                state="ended" if outcome else "running",
                outcome=outcome,
                nodes=[name for name in names if name not in out][:16],
                world_size=128 if self.scale == 1 else 4,
                start_step=start if n > 1 else None,
                start_folder=f"step-{start:08}.g{n - 1}" if n > 1 else "",
                step=last,
                step_at=until,
                ended_at=ended,
                first_new_step_at=new,
            )
            out.append(lost)
            stride = max(1, round(20 * self.scale))
            odd = {self._step(31200) // stride * stride + start % stride + 1: "NaN"} if n == 2 else {}
            points(made, start + 1, last, first, step_s, odd=odd, stride=stride)
            self.attempts.append(made)
        self.attempts[2].checks = checks(4, self._step(45500))
        self.attempts[2].log_tail = {"0": LOG, "1": "\x1b[31merror\x1b[0m <img src=x onerror=alert(1)>\n"}
        self.attempts[2].save()
        return main

    def _gpu_incident(self) -> None:
        one, two, _ = self.attempts
        fault = one.step_at
        incident = self.incident_of(one, fault, "Node lost: gpu-0417", "gpu-0417", "its GPU fell off the bus (Xid 79)")
        Recovery.objects.create(
            incident=incident,
            training_job=self.main,
            from_attempt=one,
            to_attempt=two,
            verification="PASS",
            rpo_steps=self._step(1412),
            rpo_gpu_hours=83.7,
            stamps=stamps(fault, detected=3.2, diagnosed=3.4, requeued=12.0, launched=89.0, first_new_step=2355.0),
        )
        self._hold("gpu-0417", incident, "DOWN", ["DRAIN", "NOT_RESPONDING"])

    def _network_incident(self) -> Incident:
        _, two, three = self.attempts
        fault = two.step_at + timedelta(seconds=0.7)
        why = "its agent fell silent, two vantage points get no answer, and other nodes answer"
        incident = self.incident_of(two, fault, "Node lost: gpu-0422", "gpu-0422", why)
        base = fault.timestamp()
        Recovery.objects.create(
            incident=incident,
            training_job=self.main,
            from_attempt=two,
            to_attempt=three,
            verification="PASS",
            rpo_steps=self._step(268),
            rpo_gpu_hours=19.0,
            stamps=stamps(
                fault,
                last_good=-0.7,
                detected=3.4,
                diagnosed=6.2,
                held=7.5,
                requeued=11.9,
                launched=three.launched_at.timestamp() - base,
                rendezvous=three.rendezvous_at.timestamp() - base,
                loaded=three.loaded_at.timestamp() - base,
                first_step=three.first_step_at.timestamp() - base,
                first_new_step=three.first_new_step_at.timestamp() - base,
                verified=three.first_new_step_at.timestamp() - base + 9.4,
            ),
        )
        evidence(
            incident,
            fault,
            ("network", "soft", "gpu-0422 mlx5_4/1 link_error_recovery 0 → 3 in 60 s", -1.2),
            ("process", "accuses", "agent on gpu-0422 silent for 3.1 s (limit 3.0 s)", 3.1),
            ("network", "accuses", "probe of gpu-0422:6818 from controller: timeout", 3.2),
            ("network", "accuses", "probe of gpu-0422:43121 from gpu-0411: timeout", 3.3),
            ("network", "clears", "probe of gpu-0423:6818 from controller: open", 3.3),
            ("slurm", "clears", "gpu-0422 ALLOCATED, last answered 41 s ago: Slurm has not noticed", 3.4),
            ("process", "accuses", f"rank 83 <b>stuck</b> in all-reduce {HOSTILE}", 3.0),
        )
        seen = [{"at": base + 6.3, "stage": "look", "text": "ALLOCATED, no drain of anyone’s"}]
        seen.append({"at": base + 7.4, "stage": "confirm", "text": "DRAIN seen, reason ours"})
        action(incident, "hold_node", "gpu-0422", 1, 1.3, log=seen, outcome="DRAIN seen, the reason is ours")
        requeue = [{"at": base + 8, "stage": s, "text": t} for s, t in (("requeue", "asked"), ("exclude", "read back"))]
        done = "Exclusion read back before release; restart count 1 → 2"
        action(
            incident, "requeue_excluding", "771204", 2, 4.4, log=requeue, outcome=done, params={"exclude": ["gpu-0422"]}
        )
        action(incident, "notify", self.main.run_id, 3, 0.1, outcome="written to the log")
        self._hold("gpu-0422", incident, "IDLE", ["DRAIN"])
        NodeCheck.objects.create(
            node=self.nodes["gpu-0422"],
            vantage="controller",
            address="10.77.4.22",
            port=6818,
            asked_at=fault + timedelta(seconds=2.2),
            answered_at=fault + timedelta(seconds=3.2),
            outcome="timeout",
        )
        return incident

    def incident_of(self, hit: Attempt, fault: datetime, summary: str, node: str, reason: str) -> Incident:
        return Incident.objects.create(
            cluster=self.cluster,
            training_job=self.main,
            attempt=hit,
            state="resolved",
            cause="node_lost",
            summary=summary,
            reason=reason,
            confidence=0.95,
            budget="infrastructure",
            suspects=[node],
            fault_at=fault,
            last_good_at=fault - timedelta(seconds=1),
            detected_at=fault + timedelta(seconds=3.4),
            ended_at=fault + timedelta(seconds=544),
        )

    def _hold(self, name: str, incident: Incident, base: str, flags: list[str]) -> None:
        node = self.nodes[name]
        hold = NodeHold.objects.create(
            node=node,
            incident=incident,
            state="drained",
            token=f"h-{name[-4:]}",
            reason=incident.summary,
            slurm_reason=f"relume:h-{name[-4:]} {incident.summary}",
            slurm_reason_user="relume",
            created_at=incident.detected_at,
            state_at=incident.detected_at,
        )
        node.base_state, node.flags, node.reason, node.reason_user = base, flags, hold.slurm_reason, "relume"
        node.reason_at = hold.created_at
        node.save()

    def _reports(self) -> None:
        third = self.attempts[2]
        for k, name in enumerate(third.nodes):
            ranks = [
                {
                    "rank": 8 * k + r,
                    "state": "running",
                    "phase": "training",
                    "step": self.main.step,
                    "progress_age_s": 19.0 if (k, r) == (8, 6) else 3.1 if (k, r) == (8, 5) else 0.4,
                }
                for r in range(8)
            ]
            AgentReport.objects.create(
                attempt=third,
                node=name,
                received_at=self.now - timedelta(seconds=1),
                sent_at=self.now - timedelta(seconds=1),
                state="running",
                leader=k == 0,
                ranks=ranks,
            )

    def _checkpoints(self) -> None:
        rows = [(18000, 1, "committed"), (45500, 2, "committed"), (46000, 3, "committed"), (46500, 3, "committed")]
        rows += [(47000, 3, "quarantined"), (47500, 3, "committed"), (48000, 3, "committed")]
        for step, generation, state in rows:
            step = self._step(step)
            Checkpoint.objects.create(
                training_job=self.main,
                folder=f"step-{step:08}.g{generation}",
                step=step,
                generation=generation,
                state=state,
                reason="shard of rank 61: digest differs" if state == "quarantined" else "",
                bytes=98_031_000_000,
                blocked_s=0.41,
                durable_s=38.0,
                committed_at=self.now - timedelta(seconds=(self._step(48210) - step) * 1.57),
            )


LOG = "\n".join(
    [
        *(f"15:2{k % 6}:32 step {48171 + 10 * k:,} loss 2.0{71 - k} grad 0.41 lr 2.3862e-4" for k in range(12)),
        "15:26:51 warn gpu-0419 rank 70: clocks limited by temperature, 1,410 MHz",
        "15:27:02 \x1b[32mstep 48,191\x1b[0m loss 2.066 </li><script>alert('log')</script>",
        "15:27:32 step 48,210 loss 2.063 grad 0.39 lr 2.3859e-4",
    ]
)
