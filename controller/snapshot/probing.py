"""Real probes on a suspicion: ask the agents nearby, connect from here, and keep every answer as a row."""

from collections.abc import Iterable

from controller.clock import aware
from controller.decision.findings import Suspicion
from controller.models import AgentReport, Cluster, Node, NodeCheck
from controller.site import Site
from controller.slurm.reach import Outcome, Target

CONTROLLER = "controller"
LIVING = ("open", "refused")
ASK_AGAIN_S = 2.0
KEPT_S = 3600.0


def look(cluster: Cluster, suspicions: Iterable[Suspicion], site: Site) -> None:
    """Asks first and connects then, so that the agents probe while this process waits. Outside any transaction."""
    wanted = list(suspicions)
    suspects = {name for suspicion in wanted for name in suspicion.nodes}
    controls = {name for suspicion in wanted for name in suspicion.controls} - suspects
    found = Node.objects.filter(cluster=cluster, name__in=suspects | controls).exclude(port=None)
    nodes = {node.name: node for node in found}
    _ask_agents(wanted, nodes, site.clock())
    _connect(list(nodes.values()), suspects, site)


def _ask_agents(suspicions: list[Suspicion], nodes: dict[str, Node], now: float) -> None:
    """Unanswered rows; ingest hands them to the agent on the vantage node. Not again while one is fresh."""
    recent = set(
        NodeCheck.objects.filter(node__in=nodes.values(), asked_at__gt=aware(now - ASK_AGAIN_S))
        .exclude(vantage=CONTROLLER)
        .values_list("node__name", "vantage")
    )
    pairs = {(name, witness) for s in suspicions for name in s.nodes for witness in s.witnesses if name in nodes}
    NodeCheck.objects.bulk_create(
        NodeCheck(
            node=nodes[name],
            vantage=witness,
            address=nodes[name].address,
            port=nodes[name].port or 0,
            asked_at=aware(now),
        )
        for name, witness in sorted(pairs - recent)
    )


def _connect(nodes: list[Node], suspects: set[str], site: Site) -> None:
    """The slurmd port of every node; the agent's own port of a suspect as well: any answer is a living host."""
    doors = agent_doors([node for node in nodes if node.name in suspects])
    targets = [(node, Target(node.address, node.port or 0)) for node in nodes]
    targets += [(node, door) for node in nodes for door in doors.get(node.name, ())]
    asked = aware(site.clock())
    outcomes = site.probe([target for _, target in targets], site.policy.limits.probe_timeout_s)
    answered = aware(site.clock())
    best: dict[int, tuple[Node, Target, Outcome]] = {}
    for (node, target), outcome in zip(targets, outcomes, strict=True):
        before = best.get(node.pk)
        if before is None or (outcome in LIVING and before[2] not in LIVING):
            best[node.pk] = (node, target, outcome)
    NodeCheck.objects.bulk_create(
        NodeCheck(
            node=node,
            vantage=CONTROLLER,
            address=target.address,
            port=target.port,
            asked_at=asked,
            answered_at=answered,
            outcome=outcome,
        )
        for node, target, outcome in best.values()
    )


def agent_doors(nodes: list[Node]) -> dict[str, list[Target]]:
    """The port where the newest agent of each node listens, by its own word, at the address that Slurm knows: no agent
    can point the probe at another host and so keep a dead node alive."""
    doors: dict[str, list[Target]] = {}
    names = [node.name for node in nodes]
    reports = AgentReport.objects.filter(
        node__in=names, attempt__training_job__cluster__in={node.cluster_id for node in nodes}
    ).exclude(probe_port=None)
    places = {node.name: node.address for node in nodes}
    for report in reports.order_by("received_at"):
        if report.probe_port:
            doors[report.node] = [Target(places[report.node], report.probe_port)]
    return doors


def forget_old(cluster: Cluster, now: float) -> None:
    NodeCheck.objects.filter(node__cluster=cluster, asked_at__lt=aware(now - KEPT_S)).delete()
