"""Which machine stands behind a node name: what agents and Slurm say of the hardware becomes Machine rows.

Taken down on the lease holder's sweep, not as messages come: an agent names its own node, so it is believed only where
Slurm runs its confirmed job. A swap is an event of the node; holds and exclusions keep the machine that they were made
for, and nothing is lifted by itself.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db import transaction

from controller.clock import aware
from controller.decision.hardware import Facts, compare, identified, merged
from controller.models import AgentReport, Cluster, Machine, Node, NodeEvent

AT_ONCE = 200
SPEAKING_S = 30.0
# An agent reads its machine aside: what it has not said by now it does not know.
SAID_AFTER = timedelta(seconds=30)
REBOOT_SAID = timedelta(hours=1)


def follow_machines(cluster: Cluster, now: float, *, polled: bool) -> None:
    """Takes down what has been said since the last look. `polled`: Slurm's view is a new one."""
    for report, node in _said(cluster, now):
        with transaction.atomic():
            _booted(node, report.boot_id, now)
            seen = _facts(report.identity, node)
            if identified(seen):
                settle(node, seen, now)
            AgentReport.objects.filter(pk=report.pk).update(identity_at=aware(now))
    if polled:
        for node in _other_instances(cluster):
            with transaction.atomic():
                settle(node, {"instance": [node.instance_id]}, now)


def _said(cluster: Cluster, now: float) -> Iterator[tuple[AgentReport, Node]]:
    """Reports that are not taken down yet, each with the node that Slurm confirms."""
    speaking = AgentReport.objects.filter(
        attempt__training_job__cluster=cluster,
        attempt__training_job__owner_confirmed=True,
        identity_at=None,
        received_at__gt=aware(now - SPEAKING_S),
    ).select_related("attempt__training_job")
    reports = [report for report in speaking.order_by("pk")[:AT_ONCE] if _ready(report)]
    names = {report.node for report in reports}
    nodes = {n.name: n for n in Node.objects.filter(cluster=cluster, name__in=names).select_related("machine")}
    for report in reports:
        if report.node in nodes:
            yield report, nodes[report.node]


def _ready(report: AgentReport) -> bool:
    view = report.attempt.training_job.view
    there = report.node in view.get("nodes", ()) and not view.get("missing")
    return there and (bool(report.identity) or report.received_at - report.attempt.created_at > SAID_AFTER)


def _booted(node: Node, boot_id: str, now: float) -> None:
    """A node registers again with each boot. Slurm may have said so already."""
    if not boot_id or node.boot_id == boot_id:
        return
    if node.boot_id:
        node.rebooted_at = aware(now)
        if not node.events.filter(kind="rebooted", at__gt=aware(now) - REBOOT_SAID).exists():
            NodeEvent.objects.create(
                node=node, at=aware(now), kind="rebooted", text="its agents speak from another boot"
            )
    node.boot_id = boot_id
    node.save(update_fields=["boot_id", "rebooted_at"])


def _facts(identity: dict[str, Any], node: Node) -> dict[str, list[str]]:
    return {
        "serials": list(identity.get("serials", ())),
        "instance": [node.instance_id] if node.instance_id else [],
        "gpus": list(identity.get("gpus", ())),
        "network": [*identity.get("macs", ()), *identity.get("guids", ())],
        "system": [identity["machine_id"]] if identity.get("machine_id") else [],
    }


def _other_instances(cluster: Cluster) -> list[Node]:
    """Where Slurm names an instance that its machine is not known by."""
    named = Node.objects.filter(cluster=cluster).exclude(instance_id="").select_related("machine")
    return [n for n in named if n.machine is None or n.instance_id not in n.machine.facts.get("instance", [])]


# --- one node ---------------------------------------------------------------------------------------------------


def settle(node: Node, seen: Facts, now: float) -> None:
    """The machine behind `node`, after one more look at it."""
    before = node.machine
    if before is None:
        _found(node, seen, now)
        return
    likeness = compare(before.facts, seen)
    if likeness.verdict == "other":
        _found(node, seen, now)
        what = " and ".join(likeness.differs)
        text = (
            f"another machine answers under this name, other {what}: {before} before, {node.machine or 'unknown'} now"
        )
        NodeEvent.objects.create(node=node, at=aware(now), kind="swapped", text=text + _known_as(node))
    elif likeness.verdict == "same":
        before.facts, before.last_seen_at = merged(before.facts, seen), aware(now)
        before.save(update_fields=["facts", "last_seen_at"])


def _found(node: Node, seen: Facts, now: float) -> None:
    """The machine that we know already, under whatever name, or a new one. None where several nodes look like it:
    containers on one host, or copies of one virtual machine."""
    alike = [m for m in Machine.objects.filter(cluster=node.cluster_id) if compare(m.facts, seen).verdict == "same"]
    elsewhere = Node.objects.filter(machine__in=alike, base_state__in=("IDLE", "MIXED", "ALLOCATED")).exclude(
        pk=node.pk
    )
    if len(alike) > 1 or elsewhere.exists():
        node.machine = None
    elif alike:
        node.machine = alike[0]
        Machine.objects.filter(pk=alike[0].pk).update(facts=merged(alike[0].facts, seen), last_seen_at=aware(now))
    else:
        times = {"first_seen_at": aware(now), "last_seen_at": aware(now)}
        node.machine = Machine.objects.create(cluster=node.cluster, facts=dict(seen), **times)
    node.save(update_fields=["machine"])


def _known_as(node: Node) -> str:
    """Under which other names this machine was held before."""
    if node.machine is None:
        return ""
    names = sorted(set(node.machine.holds.exclude(node=node).values_list("node__name", flat=True)))
    return f" (held before as {', '.join(names)})" if names else ""
