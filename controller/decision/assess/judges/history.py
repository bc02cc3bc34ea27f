"""What was seen before: one node with the same hardware error in several jobs.

A job's word on a node that was not enough for a hold is a strike. It counts as an independent reporter for another job,
as long as the policy remembers it; for the same job, and for other jobs of the same owner, it is the same voice again.
"""

from collections.abc import Iterable

from controller.decision.assess.opinion import Charge, Opinion
from controller.decision.assess.roles import HARD, STRONG
from controller.decision.assess.view import REMEMBERED, View, onset
from controller.decision.assess.words import listed
from controller.decision.assessment import HIGH, MEDIUM, NodeView
from controller.decision.evidence import Evidence


def seen_before(view: View) -> Opinion | None:
    """Hard errors only: a program's errors follow the program."""
    by_node: dict[str, tuple[Evidence, ...]] = {}
    for item in view.of(REMEMBERED):
        ours = not view.nodes or item.node in view.nodes
        if item.node and ours and _hard(view, item):
            by_node[item.node] = (*by_node.get(item.node, ()), item)
    if not by_node:
        return None
    often = {n: items for n, items in sorted(by_node.items()) if len(_voices(items)) >= 2}
    told = often or dict(sorted(by_node.items()))
    proof = tuple(e for items in told.values() for e in items)
    why = "; ".join(f"{n}: {e[0].attrs.get('error', e[0].raw)} in {len(_jobs(e))} job{'s' if len(_jobs(e)) > 1 else ''}"
                    for n, e in told.items())  # fmt: skip
    return Opinion(
        "gpu_hardware", HIGH if often else MEDIUM, why, proof, suspects=tuple(told),
        charges=tuple(Charge(n, items, drain=n in often) for n, items in told.items()), onset=onset(proof),
        notes=(f"keep later jobs away from {listed(told)} until it is cleared",),
        per_node={n: NodeView("gpu_hardware", n in often, True) for n in told},
    )  # fmt: skip


def by_another_job(view: View, node: str, by: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """What an independent job said of this node's hardware before: a second voice beside this job's own (`by`). It must
    be hard, or the very sign that this job has now. What this job said itself in an earlier attempt is none."""
    own, now = view.case.run_id, {e.code for e in by}
    return tuple(
        e
        for e in view.of(REMEMBERED)
        if own and e.node == node and e.attrs.get("job", own) != own and not e.attrs.get("own")
        and (_hard(view, e) or (e.attrs.get("of") in now and _strong(view, e)))
    )  # fmt: skip


def _hard(view: View, item: Evidence) -> bool:
    row = view.knowledge.of(str(item.attrs.get("of", "")))
    return row is not None and row.weight == HARD and row.verdict in ("gpu_hardware", "node_failure")


def _strong(view: View, item: Evidence) -> bool:
    row = view.knowledge.of(str(item.attrs.get("of", "")))
    return row is not None and row.weight == STRONG and row.verdict in ("gpu_hardware", "node_failure")


def _jobs(items: tuple[Evidence, ...]) -> set[object]:
    """Different jobs; entries without a job count one each."""
    return {e.attrs.get("job", e.id) for e in items}


def _voices(items: tuple[Evidence, ...]) -> set[object]:
    """All jobs of one owner are one; where nobody knows the owner, each job."""
    return {e.attrs.get("owner", e.attrs.get("job", e.id)) for e in items}
