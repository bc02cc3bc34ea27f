"""The network between nodes: links that their own host saw fail, and who names whom."""

from dataclasses import dataclass

from controller.decision.assess import law
from controller.decision.assess.opinion import Charge, Opinion
from controller.decision.assess.roles import CASCADE, STRONG, weight
from controller.decision.assess.view import View, before
from controller.decision.assess.words import listed, nodes_of, quoted
from controller.decision.assessment import HIGH, LOW, MEDIUM
from controller.decision.evidence import Evidence

OWN_LINK = ("nic.link_down", "nic.error", "ib.link_down", "ib.link_downed", "link.carrier_lost")
NAMING = ("nccl.ib_completion", "nccl.ib_qp_timeout", "nccl.socket_error", "gloo.peer_lost")
# Errors of a socket that mean no answer, not an answer by a host whose process has gone.
NO_ANSWER = frozenset({101, 110, 112, 113})
FLAP_S = 60.0


@dataclass(frozen=True)
class Edge:
    """`reporter` cannot reach `peer`."""

    reporter: str
    peer: str
    item: Evidence


def network(view: View) -> Opinion | None:
    own = dict(_own_links(view).items())
    named = edges(view, view.items)
    if own:
        return _own_fault(view, own, named)
    return _who_names_whom(view, named) if named else _unresolved(view)


def edges(view: View, items: tuple[Evidence, ...]) -> list[Edge]:
    """Complaints that name a node, one for each pair and direction."""
    found: dict[tuple[str, str], Edge] = {}
    for item in items:
        if item.code not in NAMING or not means_no_answer(view, item) or not item.node:
            continue
        peer = view.peer(item)
        if peer is not None and peer != item.node:
            found.setdefault((item.node, peer), Edge(item.node, peer, item))
    return list(found.values())


def means_no_answer(view: View, item: Evidence) -> bool:
    if item.code == "nccl.ib_completion":
        return weight(view, item) != CASCADE
    if item.code == "gloo.peer_lost":
        return item.attrs.get("kind") == "unreachable"
    return item.code == "nccl.ib_qp_timeout" or item.attrs.get("errno") in NO_ANSWER


# --- what a host says of its own link -------------------------------------------------------------------------------


def _own_links(view: View) -> dict[str, tuple[Evidence, ...]]:
    """Links that went down and did not come back within a minute."""
    ups = list(view.of("nic.link_up"))
    by_node: dict[str, list[Evidence]] = {}
    for item in view.of(*OWN_LINK):
        back = any(
            up.node == item.node
            and up.attrs.get("device") == item.attrs.get("device")
            and before(item.at, up.at)
            and not before(item.at, up.at, FLAP_S)
            for up in ups
        )
        if item.node and weight(view, item) in ("hard", STRONG) and not back:
            by_node.setdefault(item.node, []).append(item)
    return {node: tuple(items) for node, items in sorted(by_node.items())}


def _own_fault(view: View, own: dict[str, tuple[Evidence, ...]], named: list[Edge]) -> Opinion | None:
    if view.case.still_training:
        return None
    proof = tuple(e for items in own.values() for e in items)
    if law.many_at_once(view, own) or len(own) > law.FEW_NODES:
        return Opinion(
            "fabric", LOW,
            f"the links of {listed(own)} went down together: a switch or a cable bundle that they share, not one node",
            proof,
            follow_up=(f"check the switch that {listed(own)} share",),
        )  # fmt: skip
    told = {n: tuple(e.item for e in named if n in (e.reporter, e.peer)) + _closed_by(view, n) for n in own}
    layers = {n: bool(told[n]) for n in own}
    return Opinion(
        "fabric",
        HIGH if all(layers.values()) else MEDIUM,
        "; ".join(
            f"{node}: its own host saw the link fail ({quoted(items[0])})"
            + (f", and {listed(sorted(nodes_of(told[node])))} could not reach it or through it" if told[node] else "")
            for node, items in own.items()
        ),
        (*proof, *(e for items in told.values() for e in items)),
        suspects=tuple(own),
        charges=tuple(Charge(n, (*items, *told[n]), drain=layers[n]) for n, items in own.items()),
    )


def _closed_by(view: View, node: str) -> tuple[Evidence, ...]:
    """Others whose connection to it broke: a second layer beside its own link."""
    lost = view.of("gloo.peer_lost", "nccl.peer_closed", "nccl.socket_error")
    return tuple(e for e in lost if e.node != node and view.peer(e) == node)


# --- who names whom -------------------------------------------------------------------------------------------------


def _who_names_whom(view: View, named: list[Edge]) -> Opinion:
    proof = tuple(edge.item for edge in named)
    if (setup := _set_up(view, named)) is not None:
        return setup
    earlier = [edge for items in view.past for edge in edges(view, items)] + _remembered(view, named)
    every = [*named, *earlier]
    proof = (*proof, *(edge.item for edge in earlier if edge.item in view.items))
    reporters = _reporters(every)
    bad = sorted(n for n, who in reporters.items() if len(who) >= law.REPORTERS)
    # A node that complains while it is named by several has no voice of its own.
    bad = [n for n in bad if len({r for r in reporters[n] if r not in bad}) >= law.REPORTERS] or bad[:0]
    if bad and len(bad) <= law.FEW_NODES:
        return _agreed(view, bad, reporters, proof)
    centre = _centre(every)
    if centre is not None and not bad:
        return _one_side(view, centre, every, proof, reporters)
    pairs = {frozenset((edge.reporter, edge.peer)) for edge in every}
    if len(pairs) == 1:
        return _pair(view, sorted(next(iter(pairs))), proof)
    return Opinion(
        "fabric",
        LOW,
        f"{len(pairs)} pairs of nodes cannot reach each other and no one node is in all of them: what joins them",
        proof,
        follow_up=("check the switches between these nodes",),
    )


def _reporters(found: list[Edge]) -> dict[str, set[str]]:
    reporters: dict[str, set[str]] = {}
    for edge in found:
        reporters.setdefault(edge.peer, set()).add(edge.reporter)
    return reporters


def _centre(found: list[Edge]) -> str | None:
    """The one node that is in every pair, where there are two pairs or more."""
    pairs = {frozenset((edge.reporter, edge.peer)) for edge in found}
    if len(pairs) < 2:
        return None
    shared = frozenset.intersection(*pairs)
    return next(iter(shared)) if len(shared) == 1 else None


def _agreed(view: View, bad: list[str], reporters: dict[str, set[str]], proof: tuple[Evidence, ...]) -> Opinion:
    return Opinion(
        "fabric",
        HIGH,
        "; ".join(f"{len(reporters[n])} nodes ({listed(sorted(reporters[n]))}) could not reach {n}" for n in bad),
        proof,
        suspects=tuple(bad),
        charges=tuple(Charge(n, _naming(view, n, proof), drain=True) for n in bad),
    )


def _one_side(
    view: View, centre: str, every: list[Edge], proof: tuple[Evidence, ...], reporters: dict[str, set[str]]
) -> Opinion:
    others = sorted({n for edge in every for n in (edge.reporter, edge.peer)} - {centre})
    own = centre not in reporters
    said = (
        f"only {centre} complains, about {listed(others)}" if own else f"{listed(others)} each fail with {centre} only"
    )
    return Opinion(
        "fabric",
        MEDIUM,
        f"{said}: {centre} is in every pair that fails",
        proof,
        suspects=(centre,),
        charges=(Charge(centre, _naming(view, centre, proof)),),
        follow_up=(f"check the links of {centre}",),
    )


def _naming(view: View, node: str, proof: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    return tuple(e for e in proof if node in (e.node, view.peer(e)))


def _pair(view: View, pair: list[str], proof: tuple[Evidence, ...]) -> Opinion:
    one, other = pair
    return Opinion(
        "fabric",
        LOW,
        f"{one} and {other} cannot reach each other, and nobody else complains: either may be at fault",
        proof,
        suspects=(one, other),
        actions=dict.fromkeys(pair, "one strike: a later failure with any third node makes it the sole suspect"),
        follow_up=(f"queue a pairwise link check of {one} and {other}",),
    )


def _remembered(view: View, named: list[Edge]) -> list[Edge]:
    """Pairs of earlier jobs, as the controller remembers them: `peer` in the attributes."""
    found = []
    for item in view.of("history.error"):
        peer = view.names.of_address(item.attrs.get("peer"))
        if str(item.attrs.get("of", "")) in NAMING and item.node and peer and peer != item.node:
            found.append(Edge(item.node, peer, item))
    return found


def _set_up(view: View, named: list[Edge]) -> Opinion | None:
    """Before the first step, queue pairs that time out on different rails: how the network is wired, not a node."""
    found = list(view.of("nccl.ib_qp_timeout"))
    if not found or not (view.never_trained or view.case.worked_before) or len(found) != len(_items(named)):
        return None
    if (view.case.last_step or 0) > 0:
        return None
    devices = sorted({str(e.attrs["device"]).split(":", 1)[0] for e in found if e.attrs.get("device")})
    if _centre(named) is not None:
        return None  # how rails are wired does not explain one node in every pair
    if len(devices) < 2 and not view.case.worked_before:
        return None
    rails = f"{devices[0]} to {devices[-1]}" if len(devices) > 1 else listed(devices)
    return Opinion(
        "config",
        MEDIUM,
        f"set-up failure before the first step: queue pairs on {listed(devices)} ({rails}: across rails) time out on "
        f"{listed(nodes_of(found))}, where this job ran before or nothing else failed: wiring, no broken node",
        tuple(found),
        requeue=False,
        budget="user",
        stop="connections across rails time out before the first step: set NCCL_CROSS_NIC=0, or choose the devices",
        follow_up=("try NCCL_CROSS_NIC=0",),
    )


def _items(named: list[Edge]) -> list[Evidence]:
    return [edge.item for edge in named]


def _unresolved(view: View) -> Opinion | None:
    """Complaints whose peer nobody can name; and queue pairs that fail before the first step."""
    found = tuple(e for e in view.of(*NAMING) if means_no_answer(view, e))
    if not found:
        return None
    if all(e.code == "nccl.ib_qp_timeout" for e in found) and (alone := _unnamed_set_up(view, found)) is not None:
        return alone
    peers = sorted({str(e.attrs.get("peer")) for e in found if e.attrs.get("peer")})
    return Opinion(
        "fabric",
        LOW,
        f"{listed(nodes_of(found)) or 'the job'} could not reach {listed(peers) or 'a peer'}, and nobody knows which "
        "node that address belongs to",
        found,
        follow_up=(f"find the node with the address {listed(peers)}",) if peers else (),
    )


def _unnamed_set_up(view: View, found: tuple[Evidence, ...]) -> Opinion | None:
    if not view.never_trained:
        return None
    devices = sorted({str(e.attrs["device"]).split(":", 1)[0] for e in found if e.attrs.get("device")})
    if len(devices) < 2 and not view.case.worked_before:
        return None
    return Opinion(
        "config",
        MEDIUM,
        f"set-up failure before the first step: queue pairs on {listed(devices)} time out: how the network is wired",
        found,
        requeue=False,
        budget="user",
        stop="connections time out before the first step: check the wiring and NCCL_CROSS_NIC",
        follow_up=("try NCCL_CROSS_NIC=0",),
    )
