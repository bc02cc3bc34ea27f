"""One batched read of Slurm, stored. A failed or unreadable answer changes nothing but `view_error`.

Guards: a view older than the stored one is dropped; a job id that went back, or a stored view from the future, means
that Slurm or our database lost its memory: the cluster falls to observe until a person sets its mode again.
"""

import secrets

import structlog
from django.db import transaction

from controller import arrays
from controller.clock import aware
from controller.errors import SlurmError
from controller.models import Cluster, TrainingJob
from controller.slurm.port import SlurmPort
from controller.slurm.views import ClusterView
from controller.snapshot import last_view, launches, node_rows
from controller.snapshot.components import whole
from controller.snapshot.job_view import excuse, missing, view_of

log = structlog.get_logger()

POLL_EVERY_S = 2.0
CLOCK_SLACK_S = 5.0


def due(cluster: Cluster, now: float) -> bool:
    tried = [at.timestamp() for at in (cluster.view_at, cluster.view_error_at) if at is not None]
    return not tried or not 0 <= now - max(tried) < POLL_EVERY_S


def poll(cluster: Cluster, port: SlurmPort, now: float) -> bool:
    """True when a new view was stored. `cluster` is refreshed either way."""
    try:
        view = port.read_cluster()
    except SlurmError as error:
        _failed(cluster, f"{type(error).__name__}: {error}", now)
        return False
    if view.cluster != cluster.name:
        _failed(cluster, f"Slurm calls itself {view.cluster!r}, this cluster is {cluster.name!r}", now)
        return False
    holders, mark = last_view.holders_of(view), secrets.token_hex(8)
    with transaction.atomic():
        cluster.refresh_from_db()
        if not _trusted(cluster, view, now) or not _marked(cluster, mark):
            return False
        node_rows.store(cluster, view, holders, last_view.of(cluster.pk, cluster.view_mark))
        _store(cluster, view, mark)
    last_view.keep(cluster.pk, mark, view, holders)
    launches.ask_accounting(cluster, port, now)
    return True


def _marked(cluster: Cluster, mark: str) -> bool:
    """False when another process has stored a view since `cluster` was read."""
    return bool(Cluster.objects.filter(pk=cluster.pk, view_mark=cluster.view_mark).update(view_mark=mark))


def _failed(cluster: Cluster, text: str, now: float) -> None:
    log.warning("slurm_view_failed", cluster=cluster.name, error=text)
    cluster.view_error, cluster.view_error_at = text, aware(now)
    cluster.save(update_fields=["view_error", "view_error_at"])


def _trusted(cluster: Cluster, view: ClusterView, now: float) -> bool:
    if cluster.view_at is not None and cluster.view_at.timestamp() > now + CLOCK_SLACK_S:
        fall_to_observe(cluster, f"the stored view is from {cluster.view_at:%Y-%m-%d %H:%M:%S}, later than now")
        cluster.view_at = None  # else no view would be taken until that moment comes
        cluster.save(update_fields=["view_at"])
    if cluster.view_at is not None and view.nodes_at < cluster.view_at:
        return False
    if cluster.next_job_id and view.next_job_id and view.next_job_id < cluster.next_job_id:
        text = f"Slurm's next job id went back from {cluster.next_job_id} to {view.next_job_id}"
        fall_to_observe(cluster, text)
    return True


def fall_to_observe(cluster: Cluster, reason: str) -> None:
    log.error("fell_to_observe", cluster=cluster.name, reason=reason)
    cluster.mode, cluster.mode_reason = "observe", reason
    cluster.save(update_fields=["mode", "mode_reason"])


def _store(cluster: Cluster, view: ClusterView, mark: str) -> None:
    arrays.follow(cluster, view)
    _store_jobs(cluster, view)
    cluster.view_at = min(view.nodes_at, view.jobs_at)
    cluster.view_mark = mark
    cluster.view_error, cluster.view_error_at = "", None
    cluster.nodes_total = len(view.nodes)
    cluster.private_data = list(view.private_data)
    cluster.scheduler = {key: view.config[key] for key in launches.SCHEDULER_KEYS if key in view.config}
    cluster.slurm_version = str(view.version)
    cluster.next_job_id = view.next_job_id or cluster.next_job_id
    columns = ["view_at", "view_error", "view_error_at", "nodes_total", "slurm_version", "next_job_id", "private_data"]
    cluster.save(update_fields=[*columns, "scheduler"])


def _store_jobs(cluster: Cluster, view: ClusterView) -> None:
    """As with nodes: rows that changed, and one UPDATE for the age of all."""
    jobs = TrainingJob.objects.filter(cluster=cluster, ended_at=None).exclude(slurm_job_id="")
    changed = []
    for job in jobs.only("pk", "slurm_job_id", "owner", "owner_confirmed", "view", "excused_at"):
        found = whole(view, view.job(job.slurm_job_id))
        ours = found is not None and found.user == job.owner
        seen = (
            view_of(found, view.nodes, job.view)
            if found is not None and ours
            else missing(job.view, found, view.private_data)
        )
        confirmed = ours or job.owner_confirmed
        if (seen, confirmed) == (job.view, job.owner_confirmed):
            continue
        if excuse(job.view) is not None and excuse(seen) is None:
            job.excused_at = view.jobs_at
        job.view, job.owner_confirmed = seen, confirmed
        changed.append(job)
    TrainingJob.objects.bulk_update(changed, ["view", "owner_confirmed", "excused_at"], batch_size=100)
    jobs.update(view_at=view.jobs_at)
