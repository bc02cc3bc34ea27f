"""The host itself: panics, memory, processors, PCIe, lockups."""

from controller.decision.assess import law
from controller.decision.assess.opinion import Charge, Opinion
from controller.decision.assess.roles import HARD, STRONG, weight
from controller.decision.assess.view import View, onset
from controller.decision.assess.words import listed, quoted
from controller.decision.assessment import HIGH, LOW, MEDIUM
from controller.decision.evidence import Evidence

HOST = (
    *("memory.uncorrected", "cpu.machine_check", "kernel.panic", "kernel.hard_lockup", "kernel.soft_lockup"),
    *("kernel.rcu_stall", "pcie.fatal", "pcie.nonfatal", "gpu.init_failed", "kernel.thermal"),
)


def host_fault(view: View) -> Opinion | None:
    by_node: dict[str, tuple[Evidence, ...]] = {}
    for item in view.of(*HOST):
        if item.node and law.accuses(view, item):
            by_node[item.node] = (*by_node.get(item.node, ()), item)
    worst = {n: _worst(view, items) for n, items in by_node.items()}
    wanted = (HARD,) if view.case.still_training else (HARD, STRONG)
    told = {n: by_node[n] for n in sorted(by_node) if worst[n] in wanted}
    if not told:
        return None
    proof = tuple(e for items in told.values() for e in items)
    if law.many_at_once(view, told):
        return Opinion("unknown", LOW, f"{len(told)} nodes of one job show faults at the same moment ({listed(told)}): "
                       "that is one incident of what they share, so no node is blamed", proof, onset=onset(proof),
                       follow_up=(f"look for what {listed(told)} share",))  # fmt: skip
    drains = {n: worst[n] == HARD or law.two_layers(view, items) for n, items in told.items()}
    return Opinion(
        "node_failure", HIGH if all(drains.values()) else MEDIUM,
        "; ".join(f"{n}: {view.said(items[0])} ({quoted(items[0], 90)})" for n, items in told.items()), proof,
        suspects=tuple(told), charges=tuple(Charge(n, items, drain=drains[n]) for n, items in told.items()),
        onset=onset(proof),
    )  # fmt: skip


def _worst(view: View, items: tuple[Evidence, ...]) -> str:
    found = {weight(view, item) for item in items}
    return HARD if HARD in found else STRONG if STRONG in found else "weak"
