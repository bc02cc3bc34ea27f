"""Who waits for whom in collectives and between two ranks, and at whom such chains end."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.decision.assess.collective_words import Group, Standing


@dataclass
class Picture:
    """`edges`: rank to those it waits for, with the group and whether it is a collective."""

    edges: dict[int, dict[int, tuple[Group, bool]]] = field(default_factory=dict)

    def add(self, waiter: int, for_whom: int, group: Group, collective: bool) -> None:
        known = self.edges.setdefault(waiter, {})
        self.edges.setdefault(for_whom, {})
        if waiter != for_whom and (for_whom not in known or collective):
            known[for_whom] = (group, collective)


def picture_of(groups: Mapping[Group, Mapping[int, Standing]]) -> Picture:
    """A rank in a collective waits for each that has not reached it; in a point-to-point operation for its peer."""
    picture = Picture()
    for group, standings in groups.items():
        for one in standings.values():
            if one.waits and one.p2p and one.peer is not None:
                picture.add(one.rank, one.peer, group, collective=False)
            elif one.collective_wait:
                for other in standings.values():
                    if _has_not_reached(other, one):
                        picture.add(one.rank, other.rank, group, collective=True)
    return picture


def without_silent_excuses(picture: Picture, spoke: set[int]) -> None:
    """A rank that others wait for in a collective is not excused by a point-to-point peer of which nothing is known."""
    awaited = {
        target for targets in picture.edges.values() for target, (_, collective) in targets.items() if collective
    }
    for rank in awaited:
        targets = picture.edges[rank]
        picture.edges[rank] = {target: edge for target, edge in targets.items() if edge[1] or target in spoke}


def _has_not_reached(other: Standing, one: Standing) -> bool:
    """`one` waits in a collective: has `other` finished less, or as much without entering the next?"""
    if other.mixed != one.mixed or other.p2p or one.completed is None or other.completed is None:
        return False
    if other.completed != one.completed:
        return other.completed < one.completed
    return not other.waits and (other.enqueued or 0) <= one.completed


def ends_of(picture: Picture) -> set[int]:
    """Ranks that others wait for and that wait for nobody outside of their own ring."""
    ends: set[int] = set()
    for ring in _rings(picture.edges):
        if any(target not in ring for rank in ring for target in picture.edges[rank]):
            continue
        awaited = {
            target for targets in picture.edges.values() for target, (_, collective) in targets.items() if collective
        } & ring
        if len(ring) > 1:
            inner = {rank: {t: e for t, e in picture.edges[rank].items() if e[1] and t in awaited} for rank in awaited}
            ends |= {rank for rank in awaited if not inner[rank]}
        elif any(next(iter(ring)) in targets for targets in picture.edges.values()):
            ends |= ring
    return ends


def _rings(edges: Mapping[int, Mapping[int, object]]) -> list[set[int]]:
    """Strongly connected components (Tarjan's, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    open_ranks: list[int] = []
    rings: list[set[int]] = []
    for root in sorted(edges):
        if root in index:
            continue
        work = [(root, iter(sorted(edges[root])))]
        index[root] = low[root] = len(index)
        open_ranks.append(root)
        while work:
            rank, targets = work[-1]
            target = next(targets, None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[rank])
                if low[rank] == index[rank]:
                    place = open_ranks.index(rank)
                    rings.append(set(open_ranks[place:]))
                    del open_ranks[place:]
            elif target not in index:
                index[target] = low[target] = len(index)
                open_ranks.append(target)
                work.append((target, iter(sorted(edges[target]))))
            elif target in open_ranks:
                low[rank] = min(low[rank], index[target])
    return rings
