"""`Cluster.rights`: what was found out about the controller's rights, and what Slurm's own refusals say since.

Finding out is repeated seldom: each time that a right is missing, slurmctld writes a line about a security violation.
"""

from collections.abc import Callable, Mapping
from typing import Any

import structlog
from django.db import transaction

from controller.decision import rights
from controller.errors import SlurmError
from controller.models import Action, Cluster

log = structlog.get_logger()

EVERY_S = 6 * 3600.0
RETRY_S = 300.0


def due(cluster: Cluster, now: float) -> bool:
    """At the first look, six hours after the last answer, five minutes after none; never while actions wait for the
    process that would ask."""
    asked, tried = cluster.rights.get("at"), cluster.rights.get("tried_at")
    if any(at is not None and 0 <= now - at < limit for at, limit in ((asked, EVERY_S), (tried, RETRY_S))):
        return False
    return not Action.objects.filter(incident__cluster=cluster, state__in=("ready", "claimed")).exists()


def refresh(cluster: Cluster, find_out: Callable[[], dict[str, Any] | None], now: float) -> bool:
    """True when Slurm was asked and told. What is known stays when it does not answer, or is another cluster."""
    try:
        found = find_out()
    except SlurmError as error:
        log.warning("rights_unknown", cluster=cluster.name, error=str(error))
        found = None
    if found is None or found["cluster"] != cluster.name:
        _change(cluster.pk, lambda before: {**before, "tried_at": now})
        return False
    keep(cluster.pk, found)
    lacking = [name for name, one in found["capabilities"].items() if one["may"] != rights.YES]
    log.info("rights_found", cluster=cluster.name, lacking=lacking)
    return True


def keep(cluster_id: int, found: dict[str, Any]) -> None:
    """Replaces what was known, refusals included: they were either confirmed just now or are out of date."""
    _change(cluster_id, lambda _: found)


def remember_refusal(cluster_id: int, capability: str, text: str, now: float) -> None:
    """Slurm said that we may not: from the next decision on it is not planned."""
    log.warning("not_permitted", capability=capability, text=text)
    _change(cluster_id, lambda before: rights.refused(before, capability, text, now))


def _change(cluster_id: int, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
    with transaction.atomic():
        cluster = Cluster.objects.select_for_update().get(pk=cluster_id)
        cluster.rights = change(cluster.rights)
        cluster.save(update_fields=["rights"])
