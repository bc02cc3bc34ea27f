"""A cluster with a story: one training job of three attempts, one of them verified, and others in every state.

Builders take only what differs. `now` is the caller's; everything lies before it.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.models import User

from controller.models import (
    Action,
    AgentReport,
    Attempt,
    Checkpoint,
    Cluster,
    Evidence,
    Incident,
    MetricChunk,
    Node,
    NodeCheck,
    NodeHold,
    Recovery,
    TrainingJob,
)

NOW = datetime(2026, 11, 29, 15, 27, 35, tzinfo=UTC)
CHECKS = ("step", "parameters", "optimizer", "learning_rate", "data_position", "random_state", "layout", "loss")
HOSTILE = '<script>alert("name")</script>'


def user(name: str, *, staff: bool = False) -> User:
    return User.objects.create_user(name, password="a long enough password", is_staff=staff)


def cluster(now: datetime = NOW, **more: Any) -> Cluster:
    return Cluster.objects.create(
        **{"name": "fuji", "view_at": now - timedelta(seconds=1), "slurm_version": "22.05.8", "nodes_total": 24} | more
    )


def job(where: Cluster, run_id: str, owner: str = "ada", now: datetime = NOW, **more: Any) -> TrainingJob:
    plain: dict[str, Any] = {
        "name": run_id,
        "owner": owner,
        "state": "training",
        "state_at": now - timedelta(hours=1),
        "created_at": now - timedelta(hours=10),
        "slurm_job_id": run_id[-4:],
    }
    return TrainingJob.objects.create(run_id=run_id, cluster=where, **(plain | more))


def attempt(of: TrainingJob, generation: int, begin: datetime, **more: Any) -> Attempt:
    plain: dict[str, Any] = {
        "slurm_job_id": of.slurm_job_id,
        "restart_count": generation - 1,
        "state": "running",
        "created_at": begin,
        "launched_at": begin,
        "rendezvous_at": begin + timedelta(seconds=4),
        "loaded_at": begin + timedelta(seconds=30),
        "first_step_at": begin + timedelta(seconds=42),
        "world_size": 4,
        "nodes": ["gpu-0410", "gpu-0411"],
    }
    return Attempt.objects.create(training_job=of, generation=generation, **(plain | more))


def loss(step: int) -> float:
    """A believable loss: a power law with a noise that is the same for a step in every attempt."""
    noise = random.Random(step * 7919).gauss(0, 0.012) + random.Random(step // 40).gauss(0, 0.012)
    return 1.552 + 7.6 * math.pow(step + 180, -0.2508) + noise


def points(
    of: Attempt,
    first: int,
    last: int,
    begin: datetime,
    step_s: float,
    *,
    odd: dict[int, Any] | None = None,
    stride: int = 1,
    chunk: int = 500,
    name: str = "loss",
    rank: int = 0,
) -> None:
    """Chunks of the points first..last; `odd` replaces values, such as {31207: "NaN"}."""
    steps = list(range(first, last + 1, stride))
    start = MetricChunk.objects.filter(attempt=of).count()
    rows = []
    for k in range(0, len(steps), chunk):
        part = steps[k : k + chunk]
        rows.append(
            MetricChunk(
                training_job=of.training_job,
                attempt=of,
                node="gpu-0410",
                seq=start + len(rows) + 1,
                rank=rank,
                name=name,
                first_step=part[0],
                last_step=part[-1],
                steps=part,
                times=[begin.timestamp() + (s - first) * step_s for s in part],
                values=[(odd or {}).get(s, loss(s)) for s in part],
            )
        )
    MetricChunk.objects.bulk_create(rows)


def checks(ranks: int, step: int, **failing: tuple[str, str]) -> dict[str, Any]:
    """Every rank passes everything but `failing` = {name: (expected, actual)}, which rank 1 does not."""
    said = {"step": str(step), "learning_rate": "2.4117e-4", "data_position": "sample 23,296,000, epoch 0"}

    def of_rank(rank: int) -> dict[str, Any]:
        lines = []
        for name in CHECKS[:-1]:
            expected = actual = said.get(name, f"xxh3_128:{random.Random(f'{name}{rank}').getrandbits(128):032x}")
            outcome = "PASS"
            if name in failing and rank == 1:
                (expected, actual), outcome = failing[name], "FAIL"
            lines.append({"name": name, "outcome": outcome, "expected": expected, "actual": actual})
        whole = "FAIL" if any(line["outcome"] == "FAIL" for line in lines) else "PASS"
        replay = {"name": "loss", "outcome": "PASS", "expected": "268 steps", "actual": "268 steps"}
        return {
            "before_first_step": {"step": step, "outcome": whole, "checks": lines},
            "replay": {"step": step + 268, "outcome": "PASS", "checks": [replay]},
        }

    return {str(rank): of_rank(rank) for rank in range(ranks)}


def stamps(fault: datetime, **seconds: float) -> dict[str, Any]:
    """Stamps by seconds after the fault."""
    base = fault.timestamp()
    return {"fault": {"at": base, "source": "incident:1:fault_at"}} | {
        name: {"at": base + after, "source": f"attempt:3:{name}_at"} for name, after in seconds.items()
    }


def nodes(where: Cluster, now: datetime = NOW) -> dict[str, Node]:
    """gpu-0410 … gpu-0433, two of them out."""
    made = [
        Node(
            cluster=where,
            name=f"gpu-{n:04}",
            base_state="ALLOCATED" if n < 428 else "IDLE",
            partitions=["h100"],
            gres="gpu:h100:8",
            address=f"10.77.4.{n - 400}",
            port=6818,
            seen_at=now - timedelta(seconds=1),
        )
        for n in range(410, 434)
    ]
    Node.objects.bulk_create(made)
    return {node.name: node for node in Node.objects.filter(cluster=where)}


def evidence(of: Incident, fault: datetime, *lines: tuple[str, str, str, float]) -> None:
    """(layer, stance, raw, seconds after the fault) each."""
    Evidence.objects.bulk_create(
        Evidence(
            incident=of,
            number=k,
            layer=layer,
            source="sensor" if layer != "slurm" else "slurm view",
            subject="gpu-0422",
            code="x",
            raw=raw,
            stance=stance,
            observed_at=fault + timedelta(seconds=after),
            received_at=fault + timedelta(seconds=after + 0.4),
        )
        for k, (layer, stance, raw, after) in enumerate(lines, start=1)
    )


def action(of: Incident, kind: str, target: str, order: int, took: float, **more: Any) -> Action:
    began = of.detected_at + timedelta(seconds=6.2)
    plain: dict[str, Any] = {
        "key": f"{of.pk}:{kind}:{target}",
        "state": "done",
        "created_at": began,
        "due_at": began,
        "expires_at": began + timedelta(minutes=10),
        "started_at": began,
        "ended_at": began + timedelta(seconds=took),
    }
    return Action.objects.create(incident=of, kind=kind, target=target, order=order, **(plain | more))


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
        self._others()

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
        incident = self._incident(one, fault, "Node lost: gpu-0417", "gpu-0417", "its GPU fell off the bus (Xid 79)")
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
        incident = self._incident(two, fault, "Node lost: gpu-0422", "gpu-0422", why)
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

    def _incident(self, hit: Attempt, fault: datetime, summary: str, node: str, reason: str) -> Incident:
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

    def _others(self) -> None:
        now = self.now
        self.others = {}
        plan = [
            ("stopped", "sparse-moe-24b", 12880, 200000, 256),
            ("verifying", "mosaic-7b-longctx", 6079, 20000, 128),
            ("recovering", "protein-lm-3b", 31820, 60000, 64),
            ("training", "code-1b-ablate-a", 71200, 80000, 32),
            ("queued", "code-1b-ablate-c", None, 80000, None),
            ("starting", "speech-enc-1b", None, 400000, 32),
            ("finished", "reward-7b-v2", 15000, 15000, 32),
            ("cancelled", HOSTILE, 2140, 10000, 8),
        ]
        for k, (state, name, step, total, gpus) in enumerate(plan):
            ended = now - timedelta(hours=2) if state in ("finished", "cancelled") else None
            made = job(
                self.cluster,
                f"tj-{k:012x}",
                self.owner,
                now,
                name=name,
                state=state,
                created_at=now - timedelta(hours=12 + k),
                state_at=ended or now - timedelta(minutes=18 + k),
                ended_at=ended,
                step=step,
                step_at=(ended or now - timedelta(seconds=3 + k)) if step else None,
                total_steps=total,
                gpus=gpus,
                view={"reason": "Priority"} if state == "queued" else {},
            )
            self.others[state] = made
            if state != "queued":
                self._other_attempts(made, state, step, ended)

    def _other_attempts(self, made: TrainingJob, state: str, step: int | None, ended: datetime | None) -> None:
        now = self.now
        names = [f"gpu-{n:04}" for n in range(410, 410 + (made.gpus or 8) // 8)]
        begin = made.created_at + timedelta(minutes=6)
        over = state in ("stopped", "recovering", "finished", "cancelled")
        restarts = 1 if state in ("stopped", "recovering", "verifying", "finished") else 0
        last = None
        for n in range(1, restarts + 2):
            upto = step if step is None or n == restarts + 1 else step * 6 // 10
            start = None if n == 1 or step is None else step // 2
            final = n == restarts + 1
            stop = (made.step_at or now) if final else begin + timedelta(hours=5)
            last = attempt(
                made,
                n,
                begin,
                nodes=names,
                state="ended" if over or not final else "starting" if state == "starting" else "running",
                outcome={"finished": "finished", "cancelled": "cancelled"}.get(state, "node_lost")
                if over or not final
                else "",
                step=upto,
                step_at=stop if upto else None,
                start_step=start,
                ended_at=(ended or stop) if over or not final else None,
                first_step_at=begin + timedelta(seconds=42) if upto else None,
                first_new_step_at=begin + timedelta(seconds=400) if upto else None,
            )
            if upto:
                first = (start or 0) + 1
                length = (stop - begin).total_seconds() - 42
                points(
                    last,
                    first,
                    upto,
                    begin + timedelta(seconds=42),
                    length / (upto - first),
                    stride=max(upto // 200, 1),
                    chunk=10,
                )
            begin = stop + timedelta(minutes=2)
        if state in ("stopped", "recovering", "verifying"):
            live = {"stopped": "awaiting_operator", "recovering": "recovering", "verifying": "verifying"}[state]
            incident = Incident.objects.create(
                cluster=self.cluster,
                training_job=made,
                attempt=last,
                state=live,
                cause="user_error" if state == "stopped" else "node_lost",
                summary="The program ended with an error" if state == "stopped" else "Node lost: gpu-0419",
                reason="assertion in router.py:212 on two sets of nodes"
                if state == "stopped"
                else "agent silent, no answer",
                confidence=0.8,
                budget="user",
                fault_at=now - timedelta(minutes=19),
                detected_at=now - timedelta(minutes=18),
                ask="a person must look; nothing was requeued" if state == "stopped" else "",
            )
            Recovery.objects.create(incident=incident, training_job=made, from_attempt=last)


LOG = "\n".join(
    [
        *(f"15:2{k % 6}:32 step {48171 + 10 * k:,} loss 2.0{71 - k} grad 0.41 lr 2.3862e-4" for k in range(12)),
        "15:26:51 warn gpu-0419 rank 70: clocks limited by temperature, 1,410 MHz",
        "15:27:02 \x1b[32mstep 48,191\x1b[0m loss 2.066 </li><script>alert('log')</script>",
        "15:27:32 step 48,210 loss 2.063 grad 0.39 lr 2.3859e-4",
    ]
)
