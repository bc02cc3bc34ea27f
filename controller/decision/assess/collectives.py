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
from dataclasses import dataclass, field

from controller.decision.evidence import Evidence

NOT_ENTERED, NOT_FINISHED, SILENT, MISMATCH = "not_entered", "not_finished", "silent", "mismatch"
STATE, STATUS, TIMEOUT = "collective.state", "nccl.watchdog_status", "nccl.watchdog_timeout"
CODES = frozenset({STATE, STATUS, TIMEOUT})
_MAX_MEMBERS = 65536

# Every member gives and gets the same sizes; in the others each may have its own.
_EQUAL_SIZES = ("all_reduce", "allreduce", "broadcast", "_all_gather_base", "_allgather_base", "_reduce_scatter_base")

Group = tuple[str, str]


@dataclass(frozen=True)
class Suspect:
    """`group`: name, with its description where known. `kind`: NOT_ENTERED, NOT_FINISHED, SILENT or MISMATCH. `proof`:
    ids of the evidence, its own word first, then that of those who wait."""

    rank: int
    group: str
    kind: str
    why: str
    proof: tuple[str, ...]


@dataclass(frozen=True)
class _Standing:
    """Where one rank stands in one group. `waits`: in an operation that has not ended. `mixed`: the group has
    point-to-point operations too, counters are of collectives alone. `dumped`: by a dump, not by a line of a log."""

    id: str
    rank: int
    completed: int | None
    enqueued: int | None
    waits: bool
    op: str = ""
    sequence: int | None = None
    shape: str = ""
    p2p: bool = False
    peer: int | None = None
    mixed: bool = False
    dumped: bool = False
    label: str = ""

    @property
    def collective_wait(self) -> bool:
        return self.waits and not self.p2p


@dataclass
class _Picture:
    """`edges`: rank to those it waits for, with the group and whether it is a collective."""

    edges: dict[int, dict[int, tuple[Group, bool]]] = field(default_factory=dict)

    def add(self, waiter: int, for_whom: int, group: Group, collective: bool) -> None:
        known = self.edges.setdefault(waiter, {})
        self.edges.setdefault(for_whom, {})
        if waiter != for_whom and (for_whom not in known or collective):
            known[for_whom] = (group, collective)


def behind(evidence: Iterable[Evidence]) -> tuple[Suspect, ...]:
    """The ranks that the others wait for, in order; empty where the numbers name nobody. The order of the evidence,
    and pieces that come twice, make no difference."""
    groups = _groups(evidence)
    differing = _mismatched(groups)
    if differing:
        return differing
    spoke = {rank for standings in groups.values() for rank in standings}
    picture = _picture(groups)
    _without_silent_excuses(picture, spoke)
    ends = sorted(_ends(picture))
    named = [rank for rank in ends if rank in spoke] or ends
    return tuple(_suspect(rank, picture, groups, rank in spoke) for rank in named) or _silent(groups, picture)


# --- what each rank said ------------------------------------------------------------------------------------------


def _groups(evidence: Iterable[Evidence]) -> dict[Group, dict[int, _Standing]]:
    groups: dict[Group, dict[int, _Standing]] = {}
    lines: dict[tuple[str, int], _Standing] = {}
    for item in sorted((e for e in evidence if e.code in CODES and e.rank is not None), key=lambda e: e.id):
        name = _text(item, "group")
        standing = _standing(item)
        if not standing.dumped:
            lines[name, standing.rank] = _later(lines.get((name, standing.rank)), standing)
            continue
        members = groups.setdefault((name, _text(item, "members")), {})
        members[standing.rank] = _later(members.get(standing.rank), standing)
    for (name, rank), standing in sorted(lines.items()):
        members = groups.setdefault(_group_of(name, rank, groups), {})
        members.setdefault(rank, standing)
    return groups


def _group_of(name: str, rank: int, groups: Mapping[Group, object]) -> Group:
    """The group that a log line means: the dumps' one of this name that holds the rank."""
    held = [group for group in groups if group[0] == name and rank in _unfold(group[1])]
    return held[0] if len(held) == 1 else (name, "")


def _standing(item: Evidence) -> _Standing:
    assert item.rank is not None  # asked by `_groups`
    if item.code == STATE:
        return _dumped(item, item.rank)
    completed, enqueued = _number(item, "completed"), _number(item, "enqueued")
    at_work = _number(item, "sequence") if item.code == TIMEOUT else _number(item, "work")
    if completed is None and at_work is not None:
        completed = at_work - 1
    waits = item.code == TIMEOUT or enqueued is None or completed is None or enqueued > completed
    return _Standing(
        item.id,
        item.rank,
        completed,
        enqueued if enqueued is not None else at_work,
        waits,
        op=_text(item, "op"),
        sequence=at_work,
        shape=_text(item, "numel_in"),
        label=_label(item),
    )


def _dumped(item: Evidence, rank: int) -> _Standing:
    return _Standing(
        item.id,
        rank,
        _number(item, "completed"),
        _number(item, "enqueued"),
        bool(_number(item, "waiting")),
        op=_text(item, "op"),
        sequence=_number(item, "sequence"),
        shape=f"{_text(item, 'sizes')} {_text(item, 'dtypes')}",
        p2p=bool(item.attrs.get("p2p")),
        peer=_number(item, "peer_rank"),
        mixed="p2p_enqueued" in item.attrs,
        dumped=True,
        label=_label(item),
    )


def _later(one: _Standing | None, other: _Standing) -> _Standing:
    """Of two words of one rank on one group: that which knows of more."""
    if one is None:
        return other
    return max((one, other), key=lambda s: (s.completed or 0, s.enqueued or 0, s.waits, s.op, s.id))


def _text(item: Evidence, name: str) -> str:
    return str(item.attrs.get(name, ""))


def _number(item: Evidence, name: str) -> int | None:
    value = item.attrs.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _label(item: Evidence) -> str:
    name = _text(item, "group_name")
    return f"{_text(item, 'group')} ({name})" if name else _text(item, "group")


def _unfold(members: str) -> frozenset[int]:
    """`0-12:4,15` as ranks; empty where it is unknown or too long to be told whole."""
    ranks: set[int] = set()
    if not members or members.endswith("…"):
        return frozenset()
    for part in members.split(","):
        span, _, stride = part.partition(":")
        first, _, last = span.partition("-")
        if not (first.isdigit() and (last or first).isdigit() and (stride or "1").isdigit()):
            return frozenset()
        ranks.update(range(int(first), min(int(last or first), int(first) + _MAX_MEMBERS) + 1, int(stride or 1) or 1))
    return frozenset(ranks)


# --- who waits for whom -------------------------------------------------------------------------------------------


def _picture(groups: Mapping[Group, Mapping[int, _Standing]]) -> _Picture:
    picture = _Picture()
    for group, standings in groups.items():
        for one in standings.values():
            if one.waits and one.p2p and one.peer is not None:
                picture.add(one.rank, one.peer, group, collective=False)
            elif one.collective_wait:
                for other in standings.values():
                    if _has_not_reached(other, one):
                        picture.add(one.rank, other.rank, group, collective=True)
    return picture


def _without_silent_excuses(picture: _Picture, spoke: set[int]) -> None:
    """A rank that others wait for in a collective is not excused by a point-to-point peer of which nothing is known."""
    awaited = {
        target for targets in picture.edges.values() for target, (_, collective) in targets.items() if collective
    }
    for rank in awaited:
        targets = picture.edges[rank]
        picture.edges[rank] = {target: edge for target, edge in targets.items() if edge[1] or target in spoke}


def _has_not_reached(other: _Standing, one: _Standing) -> bool:
    """`one` waits in a collective: has `other` finished less, or as much without entering the next?"""
    if other.mixed != one.mixed or other.p2p or one.completed is None or other.completed is None:
        return False
    if other.completed != one.completed:
        return other.completed < one.completed
    return not other.waits and (other.enqueued or 0) <= one.completed


def _ends(picture: _Picture) -> set[int]:
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


# --- what is said of them -----------------------------------------------------------------------------------------


def _suspect(rank: int, picture: _Picture, groups: Mapping[Group, Mapping[int, _Standing]], spoke: bool) -> Suspect:
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


def _silent(groups: Mapping[Group, Mapping[int, _Standing]], picture: _Picture) -> tuple[Suspect, ...]:
    """Members without a dump where every dump of their group waits in the same operation."""
    if any(picture.edges.values()):
        return ()
    spoke = {rank for standings in groups.values() for rank in standings}
    found: dict[int, Suspect] = {}
    for (_, members), standings in sorted(groups.items()):
        everybody = _unfold(members)
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


def _mismatched(groups: Mapping[Group, Mapping[int, _Standing]]) -> tuple[Suspect, ...]:
    found: dict[int, Suspect] = {}
    for _, standings in sorted(groups.items()):
        by_number: dict[int, list[_Standing]] = {}
        for one in standings.values():
            if one.collective_wait and one.op and one.sequence is not None:
                by_number.setdefault(one.sequence, []).append(one)
        for number, present in sorted(by_number.items()):
            for suspect in _odd_ones(number, present):
                found.setdefault(suspect.rank, suspect)
    return tuple(found[rank] for rank in sorted(found))


def _odd_ones(number: int, present: list[_Standing]) -> list[Suspect]:
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


def _call(one: _Standing) -> str:
    plain = one.op.lower()
    return f"{plain} {one.shape}" if plain in _EQUAL_SIZES else plain
