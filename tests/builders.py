"""Builders of rows and messages: each gives a quiet world, the caller states the difference."""

from typing import Any

T0 = 1796000000.0  # every builder's "now"
RUN_ID = "tj-4f2a9c0b11de"
TOKEN = "run-token-for-tests"


def cluster(name: str = "lab", **columns: Any) -> Any:
    from controller.models import Cluster

    row, _ = Cluster.objects.get_or_create(name=name, defaults=columns)
    return row


def training_job(run_id: str = RUN_ID, token: str = TOKEN, **columns: Any) -> Any:
    from controller.clock import aware
    from controller.models import TrainingJob
    from worker_hooks.protocol.identity import token_digest

    quiet = {
        "owner": "ada",
        "name": "mosaic",
        "slurm_job_id": "7",
        "token_digest": token_digest(token),
        "state_at": aware(T0),
        "created_at": aware(T0),
    }
    if "cluster" not in columns:
        quiet["cluster"] = cluster()
    return TrainingJob.objects.create(run_id=run_id, **(quiet | columns))


def attempt(job: Any, generation: int = 1, **columns: Any) -> Any:
    from controller.clock import aware
    from controller.models import Attempt

    quiet = {
        "slurm_job_id": "7",
        "restart_count": generation - 1,
        "nodes": ["gpu1", "gpu2"],
        "world_size": 4,
        "created_at": aware(T0),
    }
    return Attempt.objects.create(training_job=job, generation=generation, **(quiet | columns))


def node(name: str = "gpu1", **columns: Any) -> Any:
    from controller.clock import aware
    from controller.models import Node

    quiet: dict[str, Any] = {"base_state": "ALLOCATED", "seen_at": aware(T0), "address": "10.77.0.1", "port": 6818}
    if "cluster" not in columns:
        quiet["cluster"] = cluster()
    return Node.objects.create(name=name, **(quiet | columns))


def rank(number: int = 0, **keys: Any) -> dict[str, Any]:
    quiet = {"rank": number, "pid": 400 + number, "state": "running", "phase": "training", "step": 10}
    return quiet | {"progress_age_s": 0.1, "beat_age_s": 0.1, "exit_code": None, "signal": None} | keys


def message(*records: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A message of gpu1's agent as JSON builtins. Keys of `job` and `agent` are merged, others replaced."""
    body: dict[str, Any] = {
        "protocol": 1,
        "run_id": RUN_ID,
        "generation": 1,
        "node": "gpu1",
        "sent_at": T0 + 100.0,
        "boot_id": "b1",
        "ranks": [rank(0), rank(1)],
    }
    job = {"cluster": "lab", "slurm_job_id": "7", "restart_count": 0, "user": "ada", "nodes": "gpu[1-2]"}
    agent = {"version": "0.1.0", "pid": 411, "leader": True, "state": "running", "started_at": T0}
    agent |= {"addresses": {"management": "10.77.0.1"}, "probe_port": 43121, "clock_offset_s": 0.0}
    merged = {"job": job | keys.pop("job", {}), "agent": agent | keys.pop("agent", {})}
    return body | merged | keys | {"records": list(records)}


def record(seq: int, kind: str, at: float = T0 + 99.0, **body: Any) -> dict[str, Any]:
    return {"seq": seq, "kind": kind, "at": at, **body}


def event(seq: int, name: str, rank: int | None = None, at: float = T0 + 99.0, **data: Any) -> dict[str, Any]:
    return record(seq, "event", at, name=name, rank=rank, data=data)


def losses(seq: int, steps: list[int], rank: int = 0, name: str = "loss", at: float = T0 + 99.0) -> dict[str, Any]:
    times = [at - 0.1 * (len(steps) - i) for i in range(len(steps))]
    return record(
        seq, "metrics", at, rank=rank, name=name, steps=steps, times=times, values=[1.0 / (s + 1) for s in steps]
    )


def verification(seq: int, rank: int = 0, outcome: str = "PASS", stage: str = "before_first_step") -> dict[str, Any]:
    checks = [{"name": "parameters", "outcome": outcome, "expected": "crc32:01", "actual": "crc32:01"}]
    return record(seq, "verification", rank=rank, stage=stage, step=10, outcome=outcome, checks=checks)


SENSOR_TOKEN = "sensor-token-for-tests"


def sensor(node: str = "gpu1", token: str = SENSOR_TOKEN, **columns: Any) -> Any:
    from controller.clock import aware
    from controller.models import NodeSensor
    from worker_hooks.protocol.identity import token_digest

    quiet: dict[str, Any] = {"created_at": aware(T0), "token_digest": token_digest(token)}
    if "cluster" not in columns:
        quiet["cluster"] = cluster()
    return NodeSensor.objects.create(node=node, **(quiet | columns))


def sign(seq: int, code: str = "xid.79", at: float = T0 + 99.0, **body: Any) -> dict[str, Any]:
    quiet = {"code": code, "raw": f"the line of {code}", "layer": "kernel", "source": "kernel"}
    return record(seq, "sign", at, **(quiet | body))


def sense(*records: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A message of gpu1's sensor as JSON builtins."""
    body: dict[str, Any] = {"protocol": 1, "node": "gpu1", "stream": "s1", "boot_id": "b1", "sent_at": T0 + 100.0}
    body |= {"version": "0.1.0", "started_at": T0, "clock_offset_s": 0.0, "readers": {"kernel": "ok"}}
    return body | keys | {"records": list(records)}
