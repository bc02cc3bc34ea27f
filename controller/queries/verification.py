"""Is the resumed run the same run? The checks of every rank, folded line by line. Pure.

A line is as good as its worst rank, and a rank that has not reported is waited for, never assumed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from worker_hooks.protocol.records import CHECKS, OUTCOMES
from worker_hooks.protocol.tiers import PLACES

STAGES = ("before_first_step", "replay")
_WORST = {outcome: rank for rank, outcome in enumerate(OUTCOMES)}


@dataclass(frozen=True)
class CheckLine:
    """`outcome`: PASS, DEGRADED, RESHARDED or FAIL. `expected`, `actual`, `code` (a mistake known by name) and `why`
    are of the worst rank, or shared by all."""

    name: str
    outcome: str
    ranks: int
    agreeing: int
    worst_rank: int | None
    expected: str
    actual: str
    same_everywhere: bool
    code: str = ""
    why: str = ""


@dataclass(frozen=True)
class Verification:
    """`outcome`: PASS, DEGRADED, RESHARDED, FAIL, or empty while it is not known. `waiting`: ranks without a word on a
    stage. `restored`: how many shares all ranks together read from where, where any came from a node."""

    outcome: str
    lines: tuple[CheckLine, ...]
    ranks: int
    world_size: int | None
    stages: tuple[str, ...]
    restored: tuple[tuple[str, int], ...] = ()

    @property
    def agreeing(self) -> int:
        return sum(line.outcome == "PASS" for line in self.lines)

    @property
    def waiting(self) -> int:
        return max((self.world_size or self.ranks) - self.ranks, 0)


def fold(checks: Mapping[str, Any], world_size: int | None) -> Verification:
    """`{rank: {stage: {"outcome", "checks": [{"name", "outcome", "expected", "actual"}]}}}`; unreadable parts do not
    count as agreement."""
    by_name: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    stages: set[str] = set()
    outcomes: list[str] = []
    for rank, of_rank in checks.items():
        if not isinstance(of_rank, Mapping):
            continue
        for stage, record in of_rank.items():
            if not isinstance(record, Mapping):
                continue
            stages.add(stage)
            outcomes.append(_known(record.get("outcome")))
            for check in record.get("checks") or ():
                if isinstance(check, Mapping):
                    by_name.setdefault(str(check.get("name", "")), []).append((_rank(rank), check))
    lines = tuple(_line(name, by_name[name]) for name in sorted(by_name, key=_position))
    outcomes += [line.outcome for line in lines]
    ranks = len(checks)
    worst = max(outcomes, key=_WORST.__getitem__, default="")
    whole = worst == "FAIL" or (ranks >= (world_size or 1) and "before_first_step" in stages)
    ordered = tuple(s for s in STAGES if s in stages)
    return Verification(worst if whole else "", lines, ranks, world_size, ordered, _restored(checks))


def _restored(checks: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Of each rank the newest word, whichever stage said it."""
    totals: Counter[str] = Counter()
    for of_rank in checks.values():
        records = list(of_rank.values()) if isinstance(of_rank, Mapping) else []
        told = [record.get("restored_from") for record in records if isinstance(record, Mapping)]
        places = next((found for found in told if isinstance(found, Mapping)), {})
        totals.update({place: places[place] for place in PLACES if isinstance(places.get(place), int)})
    return tuple((place, totals[place]) for place in PLACES if totals[place])


def from_lines(lines: Iterable[Any]) -> Verification:
    """Checks that were stored already folded: `[{"name", "outcome", …}]`."""
    return fold({"0": {"before_first_step": {"outcome": "PASS", "checks": list(lines)}}}, 1)


def _line(name: str, found: list[tuple[int, Mapping[str, Any]]]) -> CheckLine:
    ranked = sorted(found, key=lambda pair: (-_WORST[_known(pair[1].get("outcome"))], pair[0]))
    rank, worst = ranked[0]
    outcome = _known(worst.get("outcome"))
    agreeing = {r for r, c in found} - {r for r, c in found if _known(c.get("outcome")) != "PASS"}
    same = len({(str(c.get("expected")), str(c.get("actual"))) for _, c in found}) == 1
    return CheckLine(
        name=name,
        outcome=outcome,
        ranks=len({r for r, _ in found}),
        agreeing=len(agreeing),
        worst_rank=None if outcome == "PASS" else rank,
        expected=_text(worst.get("expected")),
        actual=_text(worst.get("actual")),
        same_everywhere=same,
        code=_text(worst.get("code")),
        why=_text(worst.get("why")),
    )


def _known(outcome: object) -> str:
    """A word that is not known is not a pass."""
    text = str(outcome).upper()
    return text if text in _WORST else "FAIL"


def _rank(raw: object) -> int:
    text = str(raw)
    return int(text) if text.isdecimal() else -1


def _position(name: str) -> tuple[int, str]:
    kind = name.partition(":")[0]
    return (CHECKS.index(kind) if kind in CHECKS else len(CHECKS), name)


def _text(value: object) -> str:
    return "" if value is None else str(value)
