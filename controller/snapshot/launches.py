"""Where Slurm last started a job, and which starts failed of late: what `decision.launch` rests on.

Slurm forgets the batch host of a failed start within a moment. It is kept from the view that still shows it; where none
did, accounting is asked, for as long as it may still learn of the start.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import structlog

from controller.clock import aware
from controller.decision.launch import ACCOUNTING_WAIT_S, SLURMS_HOLDS, SLURMS_REASONS
from controller.decision.launch_facts import LaunchFact, SchedulerFact, StartFact
from controller.decision.relaunch import CAUSES
from controller.errors import SlurmError
from controller.models import Cluster, Incident, Node, TrainingJob
from controller.slurm.port import SlurmPort
from controller.slurm.views import JobView, PastJob

log = structlog.get_logger()

SCHEDULER_KEYS = ("MaxBatchRequeue", "JobRequeue", "AccountingStorageType")
MOST = 200
ASKED_AT_ONCE = 20
# Times are Slurm's here and there, and whole seconds.
MARKED_WITHIN_S = 10.0


def last_start(job: JobView, before: Mapping[str, Any]) -> dict[str, Any] | None:
    """As builtins, for the view. `before`: the view that was stored. A job that has left its nodes keeps what was
    seen."""
    same_job = before.get("raw_id") == job.raw_id
    kept: dict[str, Any] | None = before.get("last_start") if same_job else None
    if not job.batch_host or (job.state.pending and not job.state.completing):
        return kept
    if not job.state.completing:
        return _start(job, job.restarts, job.start_time)
    if kept is not None and kept["host"] == job.batch_host and kept["restarts"] in (job.restarts - 1, job.restarts):
        return kept  # it has the true start time: Slurm moves that of a job that is being requeued
    seen = before.get("restarts", 0) if same_job else job.restarts
    counted = job.state.pending or job.restarts > seen
    return _start(job, max(0, job.restarts - 1) if counted else job.restarts, None)


def _start(job: JobView, restarts: int, at: datetime | None) -> dict[str, Any]:
    start_at = at.timestamp() if at is not None else None
    return {"restarts": restarts, "host": job.batch_host, "nodes": list(job.nodes), "start_at": start_at}


def start_fact(view: Mapping[str, Any]) -> StartFact | None:
    kept = view.get("last_start")
    return None if kept is None else StartFact(kept["restarts"], kept["host"], tuple(kept["nodes"]), kept["start_at"])


# --- accounting -------------------------------------------------------------------------------------------------


def ask_accounting(cluster: Cluster, port: SlurmPort, now: float) -> None:
    """For jobs that Slurm has just held for a failed launch, on a host that no view showed."""
    if not scheduler_fact(cluster).accounting:
        return
    held = TrainingJob.objects.filter(cluster=cluster, ended_at=None, view__hold_kind__in=SLURMS_HOLDS)
    for job in [job for job in held.order_by("pk") if _unknown_and_fresh(job.view, now)][:ASKED_AT_ONCE]:
        try:
            since = job.created_at - timedelta(minutes=1)
            past = port.read_history(job.view["job_id"], user=job.owner, since=since)
        except SlurmError as error:
            log.info("accounting_not_asked", run_id=job.run_id, error=str(error))
            continue
        found = _newest_start(past, job.view["restarts"])
        if found is not None:
            job.view["last_start"] = found
            job.save(update_fields=["view"])


def _unknown_and_fresh(view: Mapping[str, Any], now: float) -> bool:
    known = view.get("last_start") is not None and view["last_start"]["restarts"] == view["restarts"] - 1
    failed_at = view.get("submit_time")  # Slurm rewrites it at each requeue
    return not view.get("batch_host") and not known and failed_at is not None and now - failed_at <= ACCOUNTING_WAIT_S


def _newest_start(past: Iterable[PastJob], restarts: int) -> dict[str, Any] | None:
    """Accounting learns of a start a moment later than Slurm: fewer starts than there were is not yet the newest."""
    started = [start for start in past if start.nodes and start.start_time is not None]
    if len(started) < restarts:
        return None
    newest = started[-1]
    at = newest.start_time.timestamp() if newest.start_time is not None else None
    return {"restarts": restarts - 1, "host": newest.nodes[0], "nodes": list(newest.nodes), "start_at": at}


# --- facts --------------------------------------------------------------------------------------------------------


def scheduler_fact(cluster: Cluster) -> SchedulerFact:
    said = cluster.scheduler
    limit = said.get("MaxBatchRequeue", "")
    return SchedulerFact(
        max_batch_requeue=int(limit) if limit.isdecimal() else SchedulerFact.max_batch_requeue,
        job_requeue=said.get("JobRequeue", "1") != "0",
        accounting="slurmdbd" in said.get("AccountingStorageType", ""),
    )


def failed_starts(cluster: Cluster, since: float) -> list[LaunchFact]:
    """Of all training jobs, newest first."""
    rows = Incident.objects.filter(
        cluster=cluster, cause__in=CAUSES, detected_at__gt=aware(since), evidence__number=1
    ).order_by("-detected_at")
    columns = ("training_job__run_id", "cause", "evidence__code", "suspects", "restarts_before", "detected_at")
    return [
        LaunchFact(run_id, cause, code, tuple(hosts), restarts, at.timestamp())
        for run_id, cause, code, hosts, restarts, at in rows.values_list(*columns)[:MOST]
    ]


def marked(cluster: Cluster, since: float) -> dict[str, float]:
    """Nodes that Slurm drained for a failed start, and when."""
    drained = Node.objects.filter(cluster=cluster, reason_at__gt=aware(since)).exclude(reason="")
    return {
        name: at.timestamp()
        for name, reason, at in drained.values_list("name", "reason", "reason_at")
        if at is not None and reason.strip().lower().startswith(SLURMS_REASONS)
    }


def marked_for(view: Mapping[str, Any], marks: Mapping[str, float]) -> set[str]:
    """Those whose drain is of the moment in which this job's start failed."""
    moments = [at for at in (view.get("submit_time"), view.get("end_time")) if at is not None]
    return {name for name, at in marks.items() if any(abs(at - moment) <= MARKED_WITHIN_S for moment in moments)}
