"""Sentences that a tired person can read aloud."""

from collections.abc import Iterable, Sequence

from controller.decision.evidence import Evidence


def listed(names: Iterable[object], most: int = 6) -> str:
    """`a, b and c`; of many the first few and how many there are."""
    texts = [str(name) for name in names]
    if len(texts) > most:
        return f"{', '.join(texts[:most])} and {len(texts) - most} more"
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if texts else ""


def whom(ranks: Sequence[int], nodes: Sequence[str]) -> str:
    """`rank 5 on gn08`, `ranks 1 and 2`, `gn08`, or `a rank`."""
    who = f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}" if ranks else ""
    where = listed(nodes)
    if who and where:
        return f"{who} on {where}"
    return who or where or "a rank"


def first_sentence(text: str) -> str:
    return text.split(". ", 1)[0].rstrip(".")


def quoted(item: Evidence, most: int = 140) -> str:
    text = str(item.attrs.get("text", "")) or item.raw
    return text if len(text) <= most else text[: most - 3] + "..."


def ranks_of(items: Iterable[Evidence]) -> tuple[int, ...]:
    return tuple(sorted({e.rank for e in items if e.rank is not None}))


def nodes_of(items: Iterable[Evidence]) -> tuple[str, ...]:
    return tuple(sorted({e.node for e in items if e.node}))
