"""What a drain waits for, in words: other people's jobs run on to their end."""

from __future__ import annotations

from datetime import UTC, datetime

from controller.models import Node
from controller.queries.tenants import Tenant

BUSY = {"ALLOCATED", "MIXED"}
NAMED = 3


def waits_words(node: Node, tenants: list[Tenant]) -> str:
    """`waits for job 88 of bob (until about 14:20 by its time limit)`; "" when the node is empty."""
    named = [_words(tenant) for tenant in tenants if tenant.seen]
    others = sum(1 for tenant in tenants if not tenant.seen)
    if others:
        named = [*named[:NAMED], "another user’s job" if others == 1 else f"{others} jobs of other users"]
    elif len(named) > NAMED:
        named = [*named[: NAMED - 1], f"{len(named) - NAMED + 1} more jobs"]
    if named:
        return "waits for " + (" and ".join(named) if len(named) < 3 else f"{', '.join(named[:-1])} and {named[-1]}")
    if "COMPLETING" in node.flags:
        return "waits for a job that is ending"
    return "waits for a job that Slurm does not show to Relume" if node.base_state in BUSY else ""


def _words(tenant: Tenant) -> str:
    said = f"job {tenant.job_id} of {tenant.user}"
    if tenant.why:
        return f"{said}, which is {'ending' if tenant.why == 'completing' else tenant.why}"
    return f"{said} ({_end(tenant.until)})"


def _end(until: datetime | None) -> str:
    """A limit is not a promise: jobs end earlier."""
    if until is None:
        return "without a time limit"
    at = until.astimezone(UTC)
    return f"until about {at.strftime('%a')} {at.day} {at.strftime('%b %H:%M')} UTC by its time limit"
