"""How many nodes a job could start on, counted before a node is kept from it. Pure.

What cannot be read for sure (a clever features expression, a partition or reservation that is hidden from us) leaves
the count unknown, and an unknown count speaks against no exclusion: Slurm's own BadConstraints is the net below.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.slurm.views import ClusterView, JobView, NodeView

_SIMPLE = re.compile(r"[\w.:=-]+(?:(?:&[\w.:=-]+)*|(?:\|[\w.:=-]+)*)", re.ASCII)
_HIDING = frozenset({"nodes", "partitions", "reservations"})


@dataclass(frozen=True, slots=True)
class Capacity:
    """`fitting`: nodes that meet the job's own wishes, in whatever state. `usable`: those of them that Slurm would
    use now or as soon as they are free."""

    needed: int
    fitting: frozenset[str]
    usable: frozenset[str]

    def affordable(self, names: Sequence[str]) -> list[str]:
        """Those of `names`, the first ones first, that can be kept from the job while enough nodes remain for it:
        enough that fit at all, and enough usable ones where there were enough before."""
        kept: list[str] = []
        for name in names:
            without = {*kept, name}
            too_few = len(self.fitting - without) < self.needed
            enough_now = len(self.usable - set(kept)) >= self.needed
            starves = name in self.usable and enough_now and len(self.usable - without) < self.needed
            if name not in self.fitting or not (too_few or starves):
                kept.append(name)
        return kept


def capacity(
    view: ClusterView, job: JobView, excluded: Sequence[str] = (), *, kept: Sequence[str] = ()
) -> Capacity | None:
    """None when it cannot be counted. `excluded`: the user's own exclusions. `kept`: reservations that are the job's
    beside the one it names."""
    if _HIDING & set(view.private_data):
        return None
    members = _members(view, job)
    if members is None:
        return None
    fits = [_has_features(node, job.features) for node in members]
    if None in fits:
        return None
    fitting = [node for node, fit in zip(members, fits, strict=True) if fit and node.name not in excluded]
    return Capacity(
        needed=max(1, job.num_nodes),
        fitting=frozenset(node.name for node in fitting),
        usable=frozenset(node.name for node in fitting if _usable(view, node, {job.reservation, *kept})),
    )


def _usable(view: ClusterView, node: NodeView, own: set[str]) -> bool:
    """As far as its state goes; reserved is no hindrance where the reservation is the job's."""
    if node.state.usable or "RESERVED" not in node.state.flags:
        return node.state.usable
    there = {name for name, reservation in view.reservations.items() if node.name in reservation.nodes}
    return bool(there) and there <= own and replace(node.state, flags=node.state.flags - {"RESERVED"}).usable


def _members(view: ClusterView, job: JobView) -> list[NodeView] | None:
    """Nodes of the job's partitions (it starts in one of them) and of its reservation."""
    names: set[str] = set()
    for partition in job.partition:
        found = view.partitions.get(partition)
        nodes = found.nodes if found is not None else [n.name for n in view.nodes.values() if partition in n.partitions]
        if not nodes:
            return None
        names |= set(nodes)
    if job.reservation:
        reservation = view.reservations.get(job.reservation)
        if reservation is None:
            return None
        names = names if "FLEX" in reservation.flags else names & set(reservation.nodes)
    return [node for name, node in view.nodes.items() if name in names]


def _has_features(node: NodeView, wanted: str) -> bool | None:
    """`a`, `a&b&c` and `a|b|c` are read; counts, brackets and mixtures are not: None."""
    if not wanted:
        return True
    if not _SIMPLE.fullmatch(wanted):
        return None
    has = set(node.features) | set(node.active_features)
    names = re.split(r"[&|]", wanted)
    return any(name in has for name in names) if "|" in wanted else all(name in has for name in names)
