"""Does Slurm answer, and since when not? What the strip under the top bar says."""

from dataclasses import dataclass
from datetime import datetime

from controller.models import Cluster

# Longer than the policy's limit for acting: a page that cries at every slow answer is not read.
STALE_S = 30.0


@dataclass(frozen=True)
class Silence:
    """One cluster whose view is old. `since` None: never answered yet."""

    cluster: str
    since: datetime | None
    error: str


def silences(now: datetime) -> list[Silence]:
    """The clusters that have not answered for a while; one query."""
    found = []
    for cluster in Cluster.objects.order_by("name"):
        if cluster.view_at is None or (now - cluster.view_at).total_seconds() > STALE_S:
            found.append(Silence(cluster.name, cluster.view_at, cluster.view_error))
    return found
