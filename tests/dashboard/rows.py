"""Builders of rows: each takes only what differs from a quiet world, and everything lies before the caller's `now`."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.models import User

from controller.models import Action, Attempt, Cluster, Evidence, Incident, MetricChunk, Node, TrainingJob

NOW = datetime(2026, 11, 29, 15, 27, 35, tzinfo=UTC)
CHECKS = ("step", "parameters", "optimizer", "learning_rate", "data_position", "random_state", "layout", "loss")
HOSTILE = '<script>alert("name")</script>'


def user(name: str, *, staff: bool = False, password: str | None = None) -> User:
    return User.objects.create_user(name, password=password, is_staff=staff)


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
