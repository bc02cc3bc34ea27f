"""Connections that the other side closed: a sign that a process had ended, not why."""

import itertools

from controller.decision.assess.judges.fabric import means_no_answer
from controller.decision.assess.opinion import Opinion
from controller.decision.assess.view import DATED_FROM, View
from controller.decision.assess.words import listed, nodes_of
from controller.decision.assessment import LOW
from controller.decision.evidence import JOB


def lost_peer(view: View) -> Opinion | None:
    """A connection that a peer closed: its process had ended. Why, its own node must tell."""
    found = tuple(
        e
        for e in view.of("gloo.peer_lost", "nccl.peer_closed", "nccl.socket_error")
        if e.origin == JOB and not means_no_answer(view, e)
    )
    if not found:
        return None
    named: dict[str, set[str]] = {}
    for item in found:
        if (peer := view.peer(item)) is not None and peer != item.node:
            named.setdefault(peer, set()).add(item.node or f"rank {item.rank}")
    complaining = {e.node for e in found if e.node}
    silent = sorted(n for n in named if n not in complaining) or sorted(named)
    suspects = silent if len(silent) == 1 else []
    collapsed = view.of("progress.slow")
    slow = slow_down(view) or "; ".join(e.raw for e in collapsed)
    text = f"the other side closed the connection to {listed(nodes_of(found)) or 'a rank'}"
    text += (
        f": a process on {suspects[0]} had ended before, and nothing says why" if suspects else ", and nothing says why"
    )
    return Opinion(
        "unknown",
        LOW,
        text + (f"; {slow}" if slow else ""),
        (*found, *(view.of("progress.step") if slow else ()), *collapsed),
        suspects=tuple(suspects),
        ranks=view.names.ranks_on(suspects[0]) if suspects and len(view.names.ranks_on(suspects[0])) == 1 else (),
        follow_up=tuple(f"look for the first dead process on {n}" for n in suspects),
        notes=(slow,) if slow else (),
    )


def slow_down(view: View) -> str:
    """How much slower the last steps were than the ones before, as a sentence; "" for less than threefold."""
    steps = [(e.at, e.attrs["step"]) for e in view.of("progress.step") if e.at is not None and "step" in e.attrs]
    points = sorted({(at, int(step)) for at, step in steps if isinstance(step, int)})
    paces = [
        ((b[0] - a[0]) / (b[1] - a[1]), b[1])
        for a, b in itertools.pairwise(points)
        if b[1] > a[1] and b[0] > a[0] and (a[0] < DATED_FROM) == (b[0] < DATED_FROM)
    ]
    if len(paces) < 2:
        return ""
    usual, (last, step) = min(pace for pace, _ in paces[:-1]), paces[-1]
    return f"the steps up to {step} were {last / usual:.0f} times slower than before" if last >= 3 * usual else ""
