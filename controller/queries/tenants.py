"""Who holds a node besides us, as far as the reader may know: everybody's time limits are visible to staff only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.clock import aware
from controller.models import Node, TrainingJob
from controller.queries.access import sees_all, visible_jobs


@dataclass(frozen=True)
class Tenant:
    """One job on a node. `seen` False: of another user, and the reader may know no more than that it is there; the
    other fields are empty then. `why`: `suspended` or `completing`."""

    seen: bool
    job_id: str = ""
    user: str = ""
    until: datetime | None = None
    why: str = ""
    training_job: TrainingJob | None = None


def tenants_of(user: Any, nodes: Iterable[Node]) -> dict[int, list[Tenant]]:
    """By node id, with one query for all of them."""
    nodes = list(nodes)
    ids = {str(tenant["job"]) for node in nodes for tenant in node.tenants}
    known = {job.slurm_job_id: job for job in visible_jobs(user).filter(slurm_job_id__in=ids)}
    return {node.pk: [_tenant(user, said, known) for said in node.tenants] for node in nodes}


def _tenant(user: Any, said: dict[str, Any], known: dict[str, TrainingJob]) -> Tenant:
    job = str(said["job"])
    theirs = said["user"] == user.get_username()
    if not (theirs or sees_all(user)):
        return Tenant(seen=False)
    until = said.get("until")
    at = aware(until) if until is not None else None
    ours = known.get(job)
    mine = ours if ours is not None and ours.owner == said["user"] else None
    return Tenant(True, job, said["user"], at, said.get("why", ""), mine)
