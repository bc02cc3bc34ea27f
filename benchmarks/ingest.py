"""Messages a second that one process takes in, whole request to commit, beside two limits measured in the same run:
the parse of the same body alone, and one durable commit of the same database alone.

`python benchmarks/ingest.py --json [--messages N] [--points N]`; `DATABASE_URL` names an empty database, else it is
a SQLite file in a temporary folder. The last line is one JSON object.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUN_ID, TOKEN, T0 = "tj-00000000be2c", "benchmark-token", 1796000000.0
RANKS = 8


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="the result as JSON (it always is; for symmetry)")
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--points", type=int, default=10, help="points in each of 8 ranks' loss records")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="relume-bench-") as folder:
        os.environ.setdefault("DATABASE_URL", f"sqlite:///{folder}/bench.sqlite3")
        print(json.dumps(measure(options.messages, options.points)))
    return 0


def measure(messages: int, points: int) -> dict[str, Any]:
    prepare()
    bodies = [json.dumps(message(i, points)).encode() for i in range(messages)]
    taken = each(post(), bodies)
    parsed = each(parse(), bodies)
    committed = each(commit(), bodies)
    return {
        "messages": messages,
        "body_bytes": len(bodies[-1]),
        "points_per_message": points * RANKS,
        "ingest_ms": round(taken * 1e3, 3),
        "parse_ms": round(parsed * 1e3, 3),
        "commit_ms": round(committed * 1e3, 3),
        "messages_per_s": round(1 / taken, 1),
        "ratio_to_parse": round(taken / parsed, 1),
        "ratio_to_commit": round(taken / committed, 2),
    }


def prepare() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", "--noinput", "-v0", "--skip-checks")
    from controller.clock import utcnow
    from controller.ingest.waking import WAKER
    from controller.models import Cluster, TrainingJob
    from worker_hooks.protocol.identity import token_digest

    WAKER.wake = lambda: None
    cluster = Cluster.objects.create(name="bench")
    times = {"state_at": utcnow(), "created_at": utcnow()}
    TrainingJob.objects.create(
        run_id=RUN_ID, owner="ada", cluster=cluster, token_digest=token_digest(TOKEN), slurm_job_id="1", **times
    )


def message(number: int, points: int) -> dict[str, Any]:
    """What one node of 8 ranks says in one second of training."""
    at, first = T0 + number, number * points
    steps = list(range(first, first + points))
    rank = {"pid": 1, "state": "running", "phase": "training", "step": steps[-1], "progress_age_s": 0.1}
    records = [
        {"seq": number * RANKS + r + 1, "kind": "metrics", "at": at, "rank": r, "name": "loss"}
        | {"steps": steps, "times": [at] * points, "values": [2.5] * points}
        for r in range(RANKS)
    ]
    job = {"cluster": "bench", "slurm_job_id": "1", "restart_count": 0, "user": "ada", "nodes": "gpu[1-64]"}
    agent = {"version": "0", "pid": 1, "leader": True, "state": "running", "started_at": T0, "addresses": {}}
    ranks = [rank | {"rank": r, "beat_age_s": 0.1} for r in range(RANKS)]
    head = {"protocol": 1, "run_id": RUN_ID, "generation": 1, "node": "gpu1", "sent_at": at}
    return head | {"job": job, "agent": agent, "ranks": ranks, "records": records}


def post() -> Callable[[bytes], None]:
    from django.test import Client

    client, headers = Client(), {"Authorization": f"Bearer {TOKEN}", "Host": "localhost"}

    def call(body: bytes) -> None:
        answer = client.post("/api/v1/ingest", body, content_type="application/json", headers=headers)
        if answer.status_code != 200:
            raise SystemExit(f"not taken: {answer.status_code} {answer.content[:300]!r}")

    return call


def parse() -> Callable[[bytes], None]:
    from controller.api.bodies import decode_json
    from worker_hooks.protocol.messages import decode_message

    def call(body: bytes) -> None:
        decode_message(decode_json(body))

    return call


def commit() -> Callable[[bytes], None]:
    """One row changed and committed: what this disk and database can do at best."""
    from controller.models import Cluster

    def call(body: bytes) -> None:
        Cluster.objects.filter(name="bench").update(view_error=f"{len(body)} {time.monotonic()}")

    return call


def each(call: Callable[[bytes], None], bodies: list[bytes]) -> float:
    """Seconds for one."""
    began = time.perf_counter()
    for body in bodies:
        call(body)
    return (time.perf_counter() - began) / len(bodies)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controller.settings")
    sys.exit(main(sys.argv[1:]))
