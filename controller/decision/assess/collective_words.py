"""What each rank said of its collectives: the latest of its dumps and log lines, group by group."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.decision.evidence import Evidence

STATE, STATUS, TIMEOUT = "collective.state", "nccl.watchdog_status", "nccl.watchdog_timeout"
CODES = frozenset({STATE, STATUS, TIMEOUT})
_MAX_MEMBERS = 65536

Group = tuple[str, str]


@dataclass(frozen=True)
class Standing:
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


def groups_of(evidence: Iterable[Evidence]) -> dict[Group, dict[int, Standing]]:
    """By (name, members) of the group and rank. Neither the order of the evidence nor pieces that come twice matter."""
    groups: dict[Group, dict[int, Standing]] = {}
    lines: dict[tuple[str, int], Standing] = {}
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
    held = [group for group in groups if group[0] == name and rank in unfold(group[1])]
    return held[0] if len(held) == 1 else (name, "")


def _standing(item: Evidence) -> Standing:
    assert item.rank is not None  # asked by `groups_of`
    if item.code == STATE:
        return _dumped(item, item.rank)
    completed, enqueued = _number(item, "completed"), _number(item, "enqueued")
    at_work = _number(item, "sequence") if item.code == TIMEOUT else _number(item, "work")
    if completed is None and at_work is not None:
        completed = at_work - 1
    waits = item.code == TIMEOUT or enqueued is None or completed is None or enqueued > completed
    return Standing(
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


def _dumped(item: Evidence, rank: int) -> Standing:
    return Standing(
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


def _later(one: Standing | None, other: Standing) -> Standing:
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


def unfold(members: str) -> frozenset[int]:
    """`0-12:4,15` as ranks; empty where it is unknown or too long to be told whole."""
    ranks: set[int] = set()
    if not members or members.endswith("…"):
        return frozenset()
    for part in members.split(","):
        span, _, stride = part.partition(":")
        first, _, last = span.partition("-")
        numbers = (first, last or first, stride or "1")
        if not all(n.isascii() and n.isdigit() and len(n) < 10 for n in numbers) or len(ranks) > _MAX_MEMBERS:
            return frozenset()
        ranks.update(range(int(first), min(int(last or first), int(first) + _MAX_MEMBERS) + 1, int(stride or 1) or 1))
    return frozenset(ranks)
