"""Slurm's nodes into rows: only what changed is written, with an event for each change that people ask about later."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from controller.decision import silence
from controller.models import Cluster, Node, NodeEvent
from controller.slurm.views import ClusterView, JobView, NodeView
from controller.snapshot.last_view import Holders, LastView, changed

OUT_FLAGS = frozenset({"DRAIN", "FAIL"})
# BootTime is counted back from a node's uptime at each registration: it wavers by a second or two.
BOOT_SLACK = timedelta(seconds=60)
COLUMNS = (
    "base_state",
    "flags",
    "reason",
    "reason_user",
    "reason_at",
    "address",
    "port",
    "boot_at",
    "partitions",
    "gres",
    "cpus",
    "memory_mb",
    "instance_id",
    "jobs",
    "tenants",
)
SINCE = ("excused_at", "rebooted_at", "seen_at")  # written with the columns
AT_ONCE = 500  # rows in memory: the first view of a large cluster changes all of them


def store(cluster: Cluster, view: ClusterView, holders: Mapping[str, Holders], last: LastView | None) -> None:
    """`cluster.view_at` still is the view's before: rows older than that were not shown by it. `last`: what the rows
    are known to hold; nothing is read for nodes that are as they were."""
    names = list(changed(view, holders, last))
    for start in range(0, len(names), AT_ONCE):
        _store(cluster, view, holders, names[start : start + AT_ONCE])
    _seen(cluster, view, last)


def _store(cluster: Cluster, view: ClusterView, holders: Mapping[str, Holders], names: list[str]) -> None:
    rows = {row.name: row for row in Node.objects.filter(cluster=cluster, name__in=names)}
    to_write, events = [], []
    for name in names:
        node = view.nodes[name]
        values = _values(node, holders.get(name, ()))
        row = rows.get(name)
        if row is None:
            to_write.append(Node(cluster=cluster, name=name, seen_at=view.nodes_at, **values))
            continue
        values["boot_at"] = values["boot_at"] or row.boot_at
        events += [NodeEvent(node=row, at=view.nodes_at, kind=kind, text=text) for kind, text in _events(row, node)]
        if _take(row, values, view.nodes_at, was_hidden=_hidden(row, cluster)):
            to_write.append(_copy(row))
    # An INSERT that becomes an UPDATE where the name is there: a tenth of what Django's bulk_update costs.
    Node.objects.bulk_create(
        to_write, update_conflicts=True, unique_fields=["cluster", "name"], update_fields=[*COLUMNS, *SINCE]
    )
    NodeEvent.objects.bulk_create(events)


def _copy(row: Node) -> Node:
    """Without its number, which would be a second conflict."""
    return Node(cluster_id=row.cluster_id, name=row.name, **{name: getattr(row, name) for name in (*COLUMNS, *SINCE)})


def _seen(cluster: Cluster, view: ClusterView, last: LastView | None) -> None:
    """One UPDATE for the age of all that this view and the one before show; what came back was written above."""
    rows = Node.objects.filter(cluster=cluster)
    before = rows if cluster.view_at is None else rows.filter(seen_at__gte=cluster.view_at)
    names = last.nodes.keys() if last is not None else set(before.values_list("name", flat=True))
    before.exclude(name__in=names - view.nodes.keys()).update(seen_at=view.nodes_at)


def _hidden(row: Node, cluster: Cluster) -> bool:
    return cluster.view_at is not None and row.seen_at < cluster.view_at


def _take(row: Node, values: dict[str, object], at: datetime, *, was_hidden: bool) -> bool:
    """True when the row must be written."""
    excused = was_hidden or _was_excused(row, values)
    if excused:
        row.excused_at = at
    if _booted(row.boot_at, values["boot_at"]) or _reboot_over(row, values):
        row.rebooted_at, excused = at, True
    changed = [column for column in COLUMNS if getattr(row, column) != values[column]]
    for column in changed:
        setattr(row, column, values[column])
    row.seen_at = at
    return excused or bool(changed)


def _was_excused(row: Node, values: dict[str, object]) -> bool:
    """An expected silence is over: from now on the node should speak."""
    return bool(silence.NODE_FLAGS & set(row.flags)) and not silence.NODE_FLAGS & set(_flags(values))


def _reboot_over(row: Node, values: dict[str, object]) -> bool:
    return "REBOOT_ISSUED" in row.flags and "REBOOT_ISSUED" not in _flags(values)


def _flags(values: dict[str, object]) -> list[str]:
    flags = values["flags"]
    assert isinstance(flags, list)
    return flags


def _booted(before: datetime | None, now: object) -> bool:
    return before is not None and isinstance(now, datetime) and now - before > BOOT_SLACK


def _events(row: Node, node: NodeView) -> Iterator[tuple[str, str]]:
    """(kind, text) of what became different since the last view."""
    before, now = set(row.flags), node.state.flags
    who = f" by {node.reason_user}" if node.reason_user else ""
    if OUT_FLAGS & now and not OUT_FLAGS & before:
        yield "drained", f"taken out of service{who}: {node.reason or 'without a reason'}"
    if OUT_FLAGS & before and not OUT_FLAGS & now:
        yield "returned", "back in service in Slurm"
    if node.state.down and row.base_state != "DOWN":
        yield "down", f"DOWN{who}: {node.reason}" if node.reason else "DOWN"
    if _booted(row.boot_at, node.boot_time):
        planned = "as asked" if silence.away(before) or "REBOOT_REQUESTED" in before else "unasked"
        yield "rebooted", f"booted again, {planned}"
    elif "REBOOT_ISSUED" in before and "REBOOT_ISSUED" not in now:
        yield "rebooted", "its reboot is over"


# --- one view ---------------------------------------------------------------------------------------------------


def _values(node: NodeView, holders: Holders) -> dict[str, object]:
    tenants = [_tenant(job) for job in holders]
    return {
        "base_state": node.state.base,
        "flags": sorted(node.state.flags),
        "reason": node.reason,
        "reason_user": node.reason_user,
        "reason_at": node.reason_at,
        "address": node.address or node.hostname or node.name,
        "port": node.port or None,
        "boot_at": node.boot_time,
        "partitions": list(node.partitions),
        "gres": node.gres[:255],
        "cpus": max(node.cpus, 0),
        "memory_mb": max(node.memory_mb, 0),
        "instance_id": node.extra.get("InstanceId", "")[:255],
        "jobs": [tenant["job"] for tenant in tenants],
        "tenants": tenants,
    }


def _tenant(job: JobView) -> dict[str, object]:
    """Who holds the node or is still leaving it. `until`: the end by its time limit, null where it has none or does not
    run. `why`: what keeps it besides."""
    why = "suspended" if job.state.suspended else "completing" if job.state.completing else ""
    until = None
    if isinstance(job.time_limit, timedelta) and job.start_time is not None and not why:
        until = (job.start_time + job.time_limit).timestamp()
    return {"job": job.job_id, "user": job.user, "until": until, "why": why}
