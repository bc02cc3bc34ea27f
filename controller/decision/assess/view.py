"""What a judge sees: the evidence once, in the order of time, each piece with its node, and how to ask for it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from controller.decision.assess import gpus
from controller.decision.assess.names import Names
from controller.decision.evidence import INDEPENDENT, Case, Evidence
from controller.decision.meanings import Knowledge, Meaning

# Lines that tell again what stands beside them.
REPEATS = "repeats"
# What an earlier incident said, of whatever job: the controller's memory of a node.
REMEMBERED = "history.error"
# Clocks of an unknown day are counted from 1970 on: they order lines among themselves, and are not dates.
DATED_FROM = 366 * 86400.0
# The same sign within this is one event told again: bursts, several readers of one log, several spellings.
SAME_EVENT_S = 300.0
DAY_S = 86400.0


@dataclass(frozen=True)
class View:
    """`items`: what may be judged. `foreign`: signs of GPUs that the job does not hold. `echoes`: lines that repeat
    another one of `items`."""

    case: Case
    knowledge: Knowledge
    names: Names
    items: tuple[Evidence, ...]
    foreign: tuple[Evidence, ...] = ()
    echoes: tuple[Evidence, ...] = ()
    past: tuple[tuple[Evidence, ...], ...] = ()
    nodes: tuple[str, ...] = ()
    healthy: frozenset[str] = frozenset()

    def of(self, *codes: str) -> tuple[Evidence, ...]:
        """Items of these codes (`xid.*`: of the family), in order."""
        wanted = set(codes)
        return tuple(e for e in self.items if e.code in wanted or f"{e.family}.*" in wanted)

    def row(self, item: Evidence) -> Meaning | None:
        return self.knowledge.of(item.code)

    def weight(self, item: Evidence) -> str:
        row = self.row(item)
        return row.weight if row is not None else "context"

    def said(self, item: Evidence) -> str:
        """What the code means, in the words of the knowledge; else the line itself."""
        row = self.row(item)
        return row.text if row is not None and row.text else item.raw[:120]

    def peer(self, item: Evidence) -> str | None:
        """The node that a line names as the other side. With two nodes, whoever is not the reporter."""
        for key in ("peer", "remote_gid"):
            if (node := self.names.of_address(item.attrs.get(key))) is not None:
                return node
        if item.attrs.get("peer") and item.node in self.nodes and len(self.nodes) == 2:
            return next(node for node in self.nodes if node != item.node)
        return None

    @property
    def never_trained(self) -> bool:
        """No step was ever made, as far as anybody knows."""
        return self.case.last_step == 0


def view_of(case: Case, knowledge: Knowledge) -> View:
    names = Names(case)
    items = ordered(_placed(each, names) for each in case.evidence if not _forgotten(each, case))
    mine, foreign = gpus.split(items, _gpus_by_node(case, names))
    return View(
        case=case,
        knowledge=knowledge,
        names=names,
        items=tuple(e for e in mine if REPEATS not in e.attrs),
        foreign=foreign,
        echoes=tuple(e for e in mine if REPEATS in e.attrs),
        past=tuple(ordered(_placed(e, names) for e in attempt.evidence) for attempt in case.attempts),
        nodes=_nodes(case, names),
        healthy=frozenset(names.canonical(node) for node in case.healthy_nodes),
    )


def ordered(items: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Each sign once, by time; what has no time comes last, by its own words: never in the order of arrival."""
    unique: dict[str, Evidence] = {}
    for item in items:
        key = repr(item.key)
        known = unique.get(key)
        if known is None or _rank(item) < _rank(known):
            unique[key] = item
    return tuple(sorted(unique.values(), key=lambda e: (e.at is None, e.at or 0.0, repr(e.key))))


def before(one: float | None, other: float | None, by_s: float = 0.0) -> bool:
    """Whether `one` is known to be earlier than `other` by more than `by_s`. Unknown moments are never earlier, nor is
    a clock without a date comparable with a date."""
    if one is None or other is None or (one < DATED_FROM) != (other < DATED_FROM):
        return False
    return one < other - by_s


def events(items: Iterable[Evidence]) -> list[list[Evidence]]:
    """Items as events: what comes within SAME_EVENT_S of an event's last line belongs to it, and so does whatever has
    no time."""
    found: list[list[Evidence]] = []
    for item in items:
        last = found[-1][-1] if found else None
        since = None if last is None else last.last_at if last.last_at is not None else last.at
        if last is None or before(since, item.at, SAME_EVENT_S):
            found.append([item])
        else:
            found[-1].append(item)
    return found


def independent(item: Evidence, run_id: str) -> bool:
    """Not the word of this job's own processes: a root sensor, Slurm, the controller, or another job. What this job
    said before is its own word, though the controller remembers it; `own`: so is that of its owner's other jobs."""
    if item.code == REMEMBERED and run_id and (item.attrs.get("own") or item.attrs.get("job", run_id) == run_id):
        return False
    return item.origin in INDEPENDENT or bool(item.job and run_id and item.job != run_id)


def onset(items: Iterable[Evidence]) -> float | None:
    return min((e.at for e in items if e.at is not None), default=None)


def _placed(item: Evidence, names: Names) -> Evidence:
    node = names.of(item)
    return item if node == item.node else replace(item, node=node)


def _forgotten(item: Evidence, case: Case) -> bool:
    if item.code != REMEMBERED or case.memory_s is None or case.now is None:
        return False
    return before(item.at, case.now, case.memory_s)


def _rank(item: Evidence) -> tuple[int, int, str]:
    return -item.count, len(item.id), item.id


def _gpus_by_node(case: Case, names: Names) -> dict[str, frozenset[str]]:
    return {names.canonical(node): uuids for node, uuids in case.gpus.items() if uuids}


def _nodes(case: Case, names: Names) -> tuple[str, ...]:
    own = [names.canonical(node) for node in (*case.nodes, *case.rank_nodes.values())]
    return tuple(sorted(set(own)))
