"""Who decides for a cluster: a lease by conditional UPDATE, given back at the end of each sweep."""

from django.db.models import F, Q

from controller.clock import aware
from controller.ledger.commit import LEASE_S
from controller.models import Cluster


def take(cluster: Cluster, owner: str, now: float) -> bool:
    """False when somebody else holds it: nothing to do then. A lease that reaches far into the future is a clock that
    was set back, and is taken too."""
    mine_or_free = Q(lease_owner=owner) | Q(lease_owner="") | Q(lease_until=None) | Q(lease_until__lte=aware(now))
    impossible = Q(lease_until__gt=aware(now + 2 * LEASE_S))
    rows = Cluster.objects.filter(mine_or_free | impossible, pk=cluster.pk)
    return bool(rows.update(lease_owner=owner, lease_until=aware(now + LEASE_S)))


def renew(cluster: Cluster, owner: str, now: float) -> bool:
    rows = Cluster.objects.filter(pk=cluster.pk, lease_owner=owner)
    return bool(rows.update(lease_until=aware(now + LEASE_S)))


def give_back(cluster: Cluster, owner: str) -> None:
    Cluster.objects.filter(pk=cluster.pk, lease_owner=owner).update(lease_owner="", lease_until=F("swept_at"))
