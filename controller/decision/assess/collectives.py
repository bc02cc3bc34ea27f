"""Who is behind in the collectives: from sequence numbers, strictly inside one process group.

A group is its name *and* its members: the same name on other ranks is another group, and numbers of two groups are
never compared. Within one, X waits for Y if X sits in an operation that Y has not reached: Y has finished fewer
operations than X, or as many and has not entered the next. In a point-to-point operation X waits for the peer that it
names (the counters of such groups differ between stages and are not compared).

A rank that is stuck looks the same in each of its groups: it has entered nothing new, or finishes nothing, while its
peers wait. A rank that waits in *one* group falls behind in its others just so. Hence all groups are drawn into one
picture of who waits for whom, and followed to its ends: a rank that others wait for and that waits for nobody, or for
nobody but those that wait for it in a point-to-point operation too. That can be several ranks at once. Where the end
is a ring of ranks that wait for each other in collectives, their programs disagree about the order of operations, and
no one of them is named. A ring of point-to-point operations names nobody either.

A rank without a dump, for which the others wait, is named only where the minority of its group is silent and nobody
who spoke explains the wait. Different operations or sizes under one number are a mismatch: the few that differ.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.decision.assess.collective_waits import Picture, ends_of, picture_of, without_silent_excuses
from controller.decision.assess.collective_words import Group, Standing, groups_of, unfold
from controller.decision.evidence import Evidence

NOT_ENTERED, NOT_FINISHED, SILENT, MISMATCH = "not_entered", "not_finished", "silent", "mismatch"

# Every member gives and gets the same sizes; in the others each may have its own.
_EQUAL_SIZES = ("all_reduce", "allreduce", "broadcast", "_all_gather_base", "_allgather_base", "_reduce_scatter_base")


@dataclass(frozen=True)
class Suspect:
    """`group`: name, with its description where known. `kind`: NOT_ENTERED, NOT_FINISHED, SILENT or MISMATCH. `proof`:
    ids of the evidence, its own word first, then that of those who wait."""

    rank: int
    group: str
    kind: str
    why: str
    proof: tuple[str, ...]


def behind(evidence: Iterable[Evidence]) -> tuple[Suspect, ...]:
    """The ranks that the others wait for, in order; empty where the numbers name nobody. The order of the evidence,
    and pieces that come twice, make no difference."""
    groups = groups_of(evidence)
    differing = _mismatched(groups)
    if differing:
        return differing
    spoke = {rank for standings in groups.values() for rank in standings}
    picture = picture_of(groups)
    without_silent_excuses(picture, spoke)
    ends = sorted(ends_of(picture))
    named = [rank for rank in ends if rank in spoke] or ends
    return tuple(_suspect(rank, picture, groups, rank in spoke) for rank in named) or _silent(groups, picture)


def _suspect(rank: int, picture: Picture, groups: Mapping[Group, Mapping[int, Standing]], spoke: bool) -> Suspect:
    waiting = {waiter: edge for waiter, targets in picture.edges.items() if (edge := targets.get(rank)) is not None}
    ranking = Counter(edge for edge in waiting.values())
    group, collective = max(ranking, key=lambda edge: (edge[1], ranking[edge], edge[0]))
    waiters = sorted(waiter for waiter, edge in waiting.items() if edge == (group, collective))
    own = groups[group].get(rank)
    proof = tuple(groups[group][waiter].id for waiter in waiters if waiter in groups[group])
    label = groups[group][waiters[0]].label
    many = f"{len(waiters)} other rank{'s' if len(waiters) > 1 else ''}"
    if own is None or not collective:
        kind, why = (
            NOT_ENTERED if spoke else SILENT,
            f"rank {rank} has not entered what {many} wait for in group {label}",
        )
        return Suspect(rank, label, kind, why, (*((own.id,) if own else ()), *proof))
    if own.waits and own.completed is not None:
        first = own.completed + 1
        why = f"rank {rank} has not finished operation {first} of group {label}, which {many} left behind"
        return Suspect(rank, label, NOT_FINISHED, why, (own.id, *proof))
    first = (own.completed or 0) + 1
    why = f"rank {rank} has not entered operation {first} of group {label}, in which {many} wait"
    return Suspect(rank, label, NOT_ENTERED, why, (own.id, *proof))


def _silent(groups: Mapping[Group, Mapping[int, Standing]], picture: Picture) -> tuple[Suspect, ...]:
    """Members without a dump where every dump of their group waits in the same operation."""
    if any(picture.edges.values()):
        return ()
    spoke = {rank for standings in groups.values() for rank in standings}
    found: dict[int, Suspect] = {}
    for (_, members), standings in sorted(groups.items()):
        everybody = unfold(members)
        missing = sorted(everybody - spoke)
        alike = len({one.completed for one in standings.values()}) == 1
        if not missing or 2 * len(missing) >= len(everybody) or not alike:
            continue
        if not all(one.collective_wait for one in standings.values()):
            continue
        one = standings[min(standings)]
        proof = tuple(standings[rank].id for rank in sorted(standings))
        for rank in missing:
            why = (
                f"rank {rank} left no word, all {len(standings)} others of group {one.label} wait in the same operation"
            )
            found.setdefault(rank, Suspect(rank, one.label, SILENT, why, proof))
    return tuple(found[rank] for rank in sorted(found))


def _mismatched(groups: Mapping[Group, Mapping[int, Standing]]) -> tuple[Suspect, ...]:
    found: dict[int, Suspect] = {}
    for _, standings in sorted(groups.items()):
        by_number: dict[int, list[Standing]] = {}
        for one in standings.values():
            if one.collective_wait and one.op and one.sequence is not None:
                by_number.setdefault(one.sequence, []).append(one)
        for number, present in sorted(by_number.items()):
            for suspect in _odd_ones(number, present):
                found.setdefault(suspect.rank, suspect)
    return tuple(found[rank] for rank in sorted(found))


def _odd_ones(number: int, present: list[Standing]) -> list[Suspect]:
    """Those who differ from a strict majority. A tie names nobody."""
    sides = Counter(_call(one) for one in present)
    most, count = max(sides.items(), key=lambda item: (item[1], item[0]))
    if len(sides) < 2 or 2 * count <= len(present):
        return []
    told = [one.id for one in present if _call(one) == most]
    return [
        Suspect(
            one.rank,
            one.label,
            MISMATCH,
            f"rank {one.rank} called {_call(one).strip()} as operation {number} of group {one.label}, "
            f"{count} others called {most.strip()}",
            (one.id, *told),
        )
        for one in sorted(present, key=lambda one: one.rank)
        if _call(one) != most
    ]


def _call(one: Standing) -> str:
    plain = one.op.lower()
    return f"{plain} {one.shape}" if plain in _EQUAL_SIZES else plain
