"""GPUs and what joins them inside a node: Xids, SXids, NVML's counters, and ECC errors wherever they surface."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from controller.decision.assess import gpus, law
from controller.decision.assess.opinion import Charge, Opinion
from controller.decision.assess.roles import CASCADE, CLEARS, HARD, STRONG, WEAK, weight
from controller.decision.assess.view import DAY_S, View, before, events
from controller.decision.assess.words import first_sentence, listed, nodes_of, quoted, ranks_of
from controller.decision.assessment import HIGH, LOW, MEDIUM, NodeView
from controller.decision.evidence import Evidence

KERNEL = ("xid.*", "sxid.*", "gpu.missing", "gpu.ecc_uncorrected", "gpu.remap_failed", "gpu.recovery_action")
# What CUDA says of the machine, through whatever library or traceback it comes.
IN_JOB = ("cuda.ecc", "cuda.nvlink")
CONTAINED = "xid.94"
ORDER = (HARD, STRONG, WEAK)


@dataclass(frozen=True)
class Fault:
    """The worst that is said of one node's devices. `again`: a second event on the same device within a day."""

    node: str
    weight: str
    lead: Evidence
    items: tuple[Evidence, ...]
    verdict: str
    again: bool = False

    @property
    def drains(self) -> bool:
        return self.weight == HARD or (self.weight == STRONG and self.again)


def device_fault(view: View) -> Opinion | None:
    faults = _faults(view)
    if view.case.still_training:
        faults = {node: fault for node, fault in faults.items() if fault.weight == HARD}
    told = {node: fault for node, fault in faults.items() if fault.weight in (HARD, STRONG)}
    unplaced = _unplaced(view)
    if not told:
        return _somewhere(view, unplaced) if unplaced else None
    if law.many_at_once(view, {node: fault.items for node, fault in told.items()}):
        return _many(view, told)
    return _named(view, told, faults)


def _faults(view: View) -> dict[str, Fault]:
    by_node: dict[str, list[Evidence]] = {}
    for item in view.of(*KERNEL, *IN_JOB):
        if item.node is not None and weight(view, item) in ORDER and _about_machine(view, item):
            by_node.setdefault(item.node, []).append(item)
    return {node: _fault(view, node, items) for node, items in sorted(by_node.items())}


def _about_machine(view: View, item: Evidence) -> bool:
    row = view.row(item)
    return row is not None and row.verdict in law.HARDWARE


def _fault(view: View, node: str, items: list[Evidence]) -> Fault:
    contained = any(e.code == CONTAINED for e in items)
    told = [e for e in items if not (contained and e.code == "cuda.ecc")]  # the same error, as the process saw it
    lead = min(told, key=lambda e: (ORDER.index(_worth(view, e)), e.origin == "job", e.at is None, e.at or 0.0, e.code))
    worth = _worth(view, lead)
    if worth == STRONG and law.two_layers(view, told):
        worth = HARD
    row = view.row(lead)
    verdict = row.verdict if row is not None else "gpu_hardware"
    again = worth == STRONG and _again(view, node, lead)
    return Fault(node, worth, lead, tuple(items), verdict, again)


def _worth(view: View, item: Evidence) -> str:
    """A code that the table wants drained at once is as good as a hard one."""
    row = view.row(item)
    found = weight(view, item)
    return HARD if found == STRONG and row is not None and row.action == "drain" else found


def _again(view: View, node: str, lead: Evidence) -> bool:
    """A second event like it on this device within a day: in this set, or remembered from before."""
    device = gpus.device_of(lead)
    same = [e for e in view.of(lead.code) if e.node == node and gpus.device_of(e) == device]
    told = events(same)
    if any(
        before(one[0].at, other[0].at) and not before(one[-1].at, other[0].at, DAY_S) for one, other in _pairs(told)
    ):
        return True
    earlier = [e for items in view.past for e in items if e.code == lead.code and e.node == node]
    if any(gpus.device_of(e) == device and not _a_day_before(e, lead) for e in earlier):
        return True
    return any(
        e.node == node and e.attrs.get("of") == lead.code and _lately(e, lead) and gpus.device_of(e) in ("", device)
        for e in view.of("history.error")
    )


def _a_day_before(earlier: Evidence, lead: Evidence) -> bool:
    return before(earlier.at, lead.at, DAY_S)


def _lately(remembered: Evidence, lead: Evidence) -> bool:
    hours = remembered.attrs.get("hours_ago")
    return hours <= 24 if isinstance(hours, int | float) else not _a_day_before(remembered, lead)


def _pairs(told: Sequence[list[Evidence]]) -> list[tuple[list[Evidence], list[Evidence]]]:
    return list(itertools.pairwise(told))


def _unplaced(view: View) -> tuple[Evidence, ...]:
    """ECC errors of a process whose node nobody knows."""
    return tuple(e for e in view.of(*IN_JOB) if e.node is None and weight(view, e) in (HARD, STRONG))


def _somewhere(view: View, items: tuple[Evidence, ...]) -> Opinion:
    (node,) = view.nodes if len(view.nodes) == 1 else (None,)
    ranks = ranks_of(items)
    who = f"rank {listed(ranks)}" if ranks else "a rank"
    where = node or "a node that the log does not name"
    return Opinion(
        "gpu_hardware",
        HIGH if node else MEDIUM,
        f"{view.said(items[0])}: {who} on {where} said so ({quoted(items[0])})",
        items,
        suspects=(node,) if node else (),
        ranks=ranks,
        charges=(Charge(node, items, drain=True),) if node else (),
        per_node={node: NodeView("gpu_hardware", True, True, why=view.said(items[0]))} if node else {},
        follow_up=() if node else ("find the node of that rank, and test its GPUs before anything runs there",),
    )


def _many(view: View, told: dict[str, Fault]) -> Opinion:
    items = tuple(e for fault in told.values() for e in fault.items)
    return Opinion(
        "fabric" if any("nvlink" in view.said(e).lower() or e.family == "sxid" for e in items) else "unknown",
        LOW,
        f"{len(told)} nodes of one job show GPU faults at the same moment ({listed(told)}): that is one incident of "
        "the job, or of what joins these nodes, so no node is blamed",
        items,
        requeue=True,
        follow_up=(f"look for what {listed(told)} share: power, switch, driver, or the program itself",),
        per_node={node: NodeView("unknown", xid=_xid(fault), why=_why(view, fault)) for node, fault in told.items()},
    )


def _named(view: View, told: dict[str, Fault], faults: dict[str, Fault]) -> Opinion:
    lead = min(
        told.values(), key=lambda fault: (ORDER.index(fault.weight), fault.verdict != "gpu_hardware", fault.node)
    )
    proof = tuple(e for fault in told.values() for e in fault.items)
    ranks = ranks_of(e for e in view.of(*IN_JOB) if e.node in told or (e.node is None and len(told) == 1))
    own = tuple(e for e in view.of(*IN_JOB) if e.node is None and len(told) == 1)
    return Opinion(
        lead.verdict,
        MEDIUM if lead.weight == STRONG and lead.lead.code != CONTAINED and not lead.again else HIGH,
        "; ".join(_why(view, fault) for fault in told.values()),
        (*proof, *own),
        suspects=tuple(told),
        ranks=ranks,
        charges=tuple(Charge(node, fault.items, drain=fault.drains) for node, fault in told.items()),
        gpu=gpus.device_of(lead.lead) if len(told) == 1 else "",
        xid=_xid(lead) if len(told) == 1 else None,
        requeue=not view.case.still_training or any(fault.drains for fault in told.values()),
        actions={node: text for node, fault in told.items() if (text := _action(view, fault))},
        per_node={**_harmless(view, told), **{n: _view(view, fault) for n, fault in {**faults, **told}.items()}},
    )


def _harmless(view: View, told: dict[str, Fault]) -> dict[str, NodeView]:
    """Other nodes with signs that ask for nothing."""
    items = [e for e in view.of(*KERNEL) if e.node and e.node not in told and weight(view, e) not in (CASCADE, CLEARS)]
    return {node: _soft_view(view, [e for e in items if e.node == node]) for node in nodes_of(items)}


def _view(view: View, fault: Fault) -> NodeView:
    bad = fault.weight in (HARD, STRONG)
    device = gpus.device_of(fault.lead)
    return NodeView(fault.verdict if bad else "unknown", fault.drains, bad, _xid(fault), device, _why(view, fault))


def _xid(fault: Fault) -> int | None:
    return number_of(fault.lead) if fault.lead.family == "xid" else None


def number_of(item: Evidence) -> int | None:
    tail = item.code.split(".", 1)[-1]
    return int(tail) if tail.isdecimal() and len(tail) < 10 else None


def _why(view: View, fault: Fault) -> str:
    lead = fault.lead
    device = f" of GPU {gpus.device_of(lead)}" if gpus.device_of(lead) else ""
    name = (
        f"Xid {number_of(lead)}" if lead.family == "xid" else f"SXid {number_of(lead)}" if lead.family == "sxid" else ""
    )
    said = first_sentence(view.said(lead))
    who = "the job's own log says" if lead.origin == "job" else "its kernel and driver say"
    text = f"{fault.node}: {who} {name + device + ' (' + said + ')' if name else said + device}"
    return text + (", for the second time within a day" if fault.again else "")


def _action(view: View, fault: Fault) -> str:
    if fault.lead.code == CONTAINED and not fault.drains:
        return "drain only on the 2nd Xid 94 on this GPU in 24 h or a failed row remap; otherwise reset GPU when idle"
    row = view.row(fault.lead)
    wanted = {"reset_gpu": "reset the GPU", "reboot": "reboot the node", "restart_app": "reset the GPU when idle"}
    asked = wanted.get(row.action if row is not None else "", "")
    if fault.drains:
        return f"{asked}, then test it before it returns to service" if asked else ""
    return f"{asked} when idle; drain at the next sign" if asked else "test the GPU when idle; drain at the next sign"


# --- what does not blame the machine --------------------------------------------------------------------------------


def harmless_device_signs(view: View) -> Opinion | None:
    """Signs that ask for nothing, or for a reset when nobody needs the GPU; and codes that nobody knows."""
    items = [e for e in view.of(*KERNEL, "gpu.remap_pending", "gpu.driver_error") if e.node is not None]
    items = [e for e in items if weight(view, e) not in (CASCADE, CLEARS)]
    if not items:
        return None
    unknown = [e for e in items if weight(view, e) in ORDER]
    resets = {str(e.node): _reset(str(e.node)) for e in items if e.code in ("xid.63", "gpu.remap_pending")}
    views = {node: _soft_view(view, [e for e in items if e.node == node]) for node in nodes_of(items)}
    if unknown and not view.case.still_training:
        return _unknown_code(view, unknown, items, resets, views)
    return Opinion(
        "none",
        HIGH if view.case.still_training else MEDIUM,
        f"{listed(nodes_of(items))}: {first_sentence(view.said(items[0]))}; nothing failed by it"
        + (", and the job goes on" if view.case.still_training else ""),
        tuple(items),
        requeue=False,
        budget="none",
        actions=resets,
        per_node=views,
    )


def _reset(node: str) -> str:
    return f"mark {node} for GPU reset when idle"


def _soft_view(view: View, items: list[Evidence]) -> NodeView:
    unknown = [e for e in items if weight(view, e) in ORDER]
    lead = (unknown or items)[0]
    xid = number_of(lead) if lead.family == "xid" else None
    verdict = "unknown" if unknown else "none"
    return NodeView(verdict, xid=xid, pci=gpus.pci_of(lead), why=first_sentence(view.said(lead)))


def _unknown_code(
    view: View,
    unknown: list[Evidence],
    items: list[Evidence],
    resets: dict[str, str],
    views: dict[str, NodeView],
) -> Opinion:
    repeated = {
        node: tuple(e for e in unknown if e.node == node)
        for node in nodes_of(unknown)
        if any(_again(view, node, e) for e in unknown if e.node == node)
    }
    strikes = {node: f"one strike: {quoted(next(e for e in unknown if e.node == node))}" for node in nodes_of(unknown)}
    names = ", ".join(f"{e.code.replace('.', ' ')} on {e.node}" for e in unknown)
    one = unknown[0] if len({(e.node, e.code) for e in unknown}) == 1 else None
    return Opinion(
        "unknown",
        LOW,
        f"{names}: nobody can say from this alone whether the GPU or the program is at fault"
        + (f"; on {listed(repeated)} it came twice within a day" if repeated else ""),
        tuple(items),
        suspects=tuple(repeated),
        charges=tuple(Charge(node, by) for node, by in repeated.items()),
        xid=number_of(one) if one is not None and one.family == "xid" else None,
        gpu=gpus.device_of(one) if one is not None else "",
        actions={**strikes, **resets},
        follow_up=tuple(f"run a GPU diagnosis on {node} when it is idle" for node in repeated),
        per_node=views,
    )
