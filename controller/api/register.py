"""`POST /api/v1/register`: a user tells of a run, once or several times (docs/formats.md, section 5).

The token itself never comes here, only its digest. Who owns the Slurm job is Slurm's word: a job that the last view
shows as another user's is refused, one that no view showed yet is taken as unconfirmed until a view does.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from controller.api.answers import Refused
from controller.ingest.ranges import when
from controller.models import Cluster, JobArray, Submission, TrainingJob
from worker_hooks.protocol.arrays import MAX_CHARS
from worker_hooks.protocol.identity import FORM, is_run_id, split_run_id
from worker_hooks.protocol.messages import PROTOCOL, MessageError, Reader

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
JOB_ID = re.compile(r"[0-9]{1,18}([_+][0-9]{1,9})?")
MAX_ARGUMENTS = 1000


@dataclass(frozen=True)
class Registration:
    run_id: str
    token_digest: str
    name: str
    user: str
    cluster: str
    slurm_job_id: str
    submitted_at: datetime
    argv: list[str]
    script: str
    script_digest: str
    checkpoint_root: str
    array: str


def decode(data: Any) -> Registration:
    """Raises MessageError, which names the place. What a wrapper may not know yet may be null or absent."""
    source = Reader.of(data, "registration")
    if source.integer("protocol") != PROTOCOL:
        raise MessageError("registration.protocol", f"this controller speaks {PROTOCOL}; update the older side")
    if not is_run_id(source.data.get("run_id")):
        raise MessageError("registration.run_id", f"expected {FORM}")
    if split_run_id(source.text("run_id"))[1] is not None:
        raise MessageError("registration.run_id", "a task is not registered alone: register its array")
    return Registration(
        run_id=source.text("run_id"),
        token_digest=_matching(source.text("token_sha256"), DIGEST, "registration.token_sha256"),
        name=source.optional_text("name", 255) or "",
        user=source.text("user", 255),
        cluster=source.optional_text("cluster", 255) or "",
        slurm_job_id=_matching(source.optional_text("slurm_job_id", 64), JOB_ID, "registration.slurm_job_id"),
        submitted_at=when(source.number("submitted_at"), "registration.submitted_at"),
        argv=_arguments(source),
        script=source.optional_text("script", 1 << 20) or "",
        script_digest=source.optional_text("script_digest", 80) or "",
        checkpoint_root=source.optional_text("checkpoint_root") or "",
        array=source.optional_text("array", MAX_CHARS) or "",
    )


def _matching(text: str | None, pattern: re.Pattern[str], where: str) -> str:
    if text and not pattern.fullmatch(text):
        raise MessageError(where, f"{text[:40]!r} is not of the form {pattern.pattern}")
    return text or ""


def _arguments(source: Reader) -> list[str]:
    argv = source.data.get("argv") or []
    if not isinstance(argv, list) or len(argv) > MAX_ARGUMENTS or not all(isinstance(item, str) for item in argv):
        raise MessageError("registration.argv", f"expected at most {MAX_ARGUMENTS} strings")
    return argv


@transaction.atomic
def register(told: Registration, username: str, now: datetime) -> TrainingJob:
    """The training job, made or completed. Refused: 403 not this user's, 409 another token, 400 or 503 no cluster."""
    if told.user != username:
        raise Refused(403, f"this token is {username}'s, the run is {told.user}'s", "user")
    if JobArray.objects.filter(run_id=told.run_id).exists():
        raise Refused(409, "this run is registered as an array", "array")
    job, created = TrainingJob.objects.select_for_update().get_or_create(
        run_id=told.run_id,
        defaults={
            "name": told.name,
            "owner": username,
            "cluster": cluster_named(told.cluster),
            "token_digest": told.token_digest,
            "state_at": now,
            "created_at": now,
            "checkpoint_root": told.checkpoint_root,
        },
    )
    if job.owner != username:
        raise Refused(403, "this run is another user's", "run_id")
    if job.token_digest and job.token_digest != told.token_digest:
        raise Refused(409, "this run is registered with another token", "token_sha256")
    if told.slurm_job_id:
        _check_owner(job, told.slurm_job_id)
    if not created:
        _complete(job, told)
    if told.slurm_job_id:
        _note_submission(job, told)
    return job


def cluster_named(name: str) -> Cluster:
    """The one that is named; without a name the configured one, or the only one there is."""
    name = name or settings.RELUME_CLUSTER
    known = Cluster.objects.filter(name=name).first() if name else None
    if known is not None:
        return known
    others = list(Cluster.objects.all()[:2])
    if name and not others:
        return Cluster.objects.create(name=name)
    if name:
        raise Refused(400, f"this controller does not watch a cluster {name!r}", "cluster")
    if not others:
        raise Refused(503, "this controller has not seen its Slurm yet", "cluster")
    if len(others) > 1:
        raise Refused(400, "this controller watches several clusters: say which", "cluster")
    return others[0]


def _check_owner(job: TrainingJob, slurm_job_id: str) -> None:
    """Any row that a view of Slurm filled for this job id knows whose it is."""
    shown = TrainingJob.objects.filter(cluster=job.cluster_id, slurm_job_id=slurm_job_id).exclude(view={})
    for other in shown.values_list("view", flat=True):
        user = other.get("user") if isinstance(other, dict) else None
        if user and user != job.owner:
            raise Refused(403, f"Slurm says that job {slurm_job_id} is another user's", "slurm_job_id")


def _complete(job: TrainingJob, told: Registration) -> None:
    """A later call fills what the first one could not know; it overwrites nothing."""
    columns = {"name": told.name, "token_digest": told.token_digest, "checkpoint_root": told.checkpoint_root}
    new = {column: value for column, value in columns.items() if value and not getattr(job, column)}
    for column, value in new.items():
        setattr(job, column, value)
    if new:
        job.save(update_fields=sorted(new))


def _note_submission(job: TrainingJob, told: Registration) -> None:
    """The newest submission's job is the training job's; one that moves to another job is confirmed anew."""
    later = job.submissions.filter(submitted_at__gt=told.submitted_at).exclude(slurm_job_id=told.slurm_job_id).exists()
    Submission.objects.get_or_create(
        training_job=job,
        slurm_job_id=told.slurm_job_id,
        defaults={
            "submitted_at": told.submitted_at,
            "argv": told.argv,
            "script": told.script,
            "script_digest": told.script_digest,
        },
    )
    if later or job.slurm_job_id == told.slurm_job_id:
        return
    if job.slurm_job_id:
        job.owner_confirmed = False
    job.slurm_job_id = told.slurm_job_id
    job.save(update_fields=["slurm_job_id", "owner_confirmed"])
