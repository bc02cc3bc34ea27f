"""The evidence of one incident: on one time axis by layer, and as lines to read, nearest to the verdict first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controller.models import Evidence, Incident
from dashboard import formats, words

# What carries the verdict or speaks against it is numbered, shown first and never folded away.
NUMBERED = ("accuses", "clears", "soft")
PROOF_SHOWN, OTHERS_SHOWN = 120, 100
# What lies further from the fault has its place at the edge of the axis: the minutes around the fault stay readable.
AROUND = timedelta(hours=1)
READ_OUT_CHARS = 160


@dataclass(frozen=True)
class SignLine:
    """One piece of evidence. `number` is its mark's (0: a small grey one). `after`: since the fault. `late`: it came
    when the verdict had been given."""

    row: Evidence
    number: int
    layer: str
    stance: str
    said: str
    whose: str
    where: str
    raw: str
    burst: str
    after: str
    clock: str
    late: bool


@dataclass(frozen=True)
class EvidenceView:
    """`proof` is shown, `cascade` and `context` behind a number. `left_out`: lines that no page shows."""

    proof: list[SignLine]
    cascade: list[SignLine]
    context: list[SignLine]
    cascade_words: str
    context_words: str
    late: int
    left_out: int
    summary: str
    lanes_json: dict[str, Any] | None

    @property
    def lines(self) -> list[SignLine]:
        """All that is shown, in the order of time."""
        return sorted((*self.proof, *self.cascade, *self.context), key=lambda line: line.row.observed_at)

    @property
    def total(self) -> int:
        return len(self.proof) + len(self.cascade) + len(self.context)


def evidence_view(incident: Incident, rows: Sequence[Evidence], fault: datetime) -> EvidenceView:
    """`rows` in the order of their numbers; `fault`: the zero of the axis."""
    ordered = sorted(rows, key=lambda e: (e.observed_at, e.number))
    numbered = [e for e in ordered if e.stance in NUMBERED]
    cascade = [e for e in ordered if e.stance == "cascade"]
    context = [e for e in ordered if e.stance not in (*NUMBERED, "cascade")]
    proof = [_line(e, n, fault) for n, e in enumerate(numbered[:PROOF_SHOWN], start=1)]
    fallen, others = ([_line(e, 0, fault) for e in some[:OTHERS_SHOWN]] for some in (cascade, context))
    lines = [*proof, *fallen, *others]
    return EvidenceView(
        proof=proof,
        cascade=fallen,
        context=others,
        cascade_words=_counted(cascade, "consequence") + " of it" if cascade else "",
        context_words=_counted(context, "other sign") + " that decided nothing" if context else "",
        late=sum(line.late for line in lines),
        left_out=len(rows) - len(lines),
        summary=_summary(numbered, cascade, context),
        lanes_json=_lanes(incident, lines, fault) if lines else None,
    )


def _line(e: Evidence, number: int, fault: datetime) -> SignLine:
    rank = "" if e.rank is None else f"rank {e.rank}"
    return SignLine(
        row=e,
        number=number,
        layer=words.LAYERS.get(_layer(e), e.layer.capitalize()),
        stance=e.stance,
        said=words.STANCES.get(e.stance, "decided nothing"),
        whose=words.ORIGINS.get(e.origin, ""),
        where=", ".join(part for part in (e.node or e.subject, rank) if part),
        raw=formats.plain(e.raw),
        burst=burst(e.count, e.observed_at, e.last_at),
        after=since(fault, e.observed_at),
        clock=formats.clock_tenths(e.observed_at.timestamp()),
        late=e.late,
    )


def _layer(e: Evidence) -> str:
    return words.LAYER_NAMES.get(e.layer, e.layer)


def burst(count: int, first: datetime, last: datetime | None) -> str:
    """`× 1,204 in 5 s`; "" for one line."""
    if count <= 1:
        return ""
    took = (last - first).total_seconds() if last is not None else 0.0
    return f"× {count:,}" + (f" in {formats.seconds(took)}" if took >= 1 else "")


def since(fault: datetime, at: datetime) -> str:
    """`+3.2 s`, `−8 min 20 s`."""
    seconds = (at - fault).total_seconds()
    size = abs(seconds)
    said = f"{size:.1f} s" if size < 60 else formats.duration(size)
    return f"{'−' if seconds < 0 else '+'}{said}"


def _counted(rows: Iterable[Evidence], word: str) -> str:
    """`23 consequences`, with the lines behind them where bursts were collapsed."""
    rows = list(rows)
    lines = sum(e.count for e in rows)
    said = f"{len(rows):,} {word}{'' if len(rows) == 1 else 's'}"
    return said if lines == len(rows) else f"{said} ({lines:,} lines)"


def _summary(numbered: list[Evidence], cascade: list[Evidence], context: list[Evidence]) -> str:
    """What a reader who cannot see the picture must know of it."""
    if not numbered and not cascade and not context:
        return "No evidence was recorded."
    parts = []
    for stance, text in (("accuses", "{} accuse{}"), ("clears", "{} clear{} something"), ("soft", "{} soft")):
        count = sum(e.stance == stance for e in numbered)
        if count:
            parts.append(text.format(count, "s" if count == 1 else ""))
    if cascade:
        parts.append(_counted(cascade, "consequence"))
    if context:
        parts.append(_counted(context, "other sign"))
    accusing = {_layer(e) for e in numbered if e.stance == "accuses"}
    layers = [name for key, name in words.LAYERS.items() if key in accusing]
    said = f"Evidence by layer over time: {', '.join(parts)}."
    return said + (f" What accuses comes from: {', '.join(layers)}." if layers else "")


# --- the picture ----------------------------------------------------------------------------------------------------


def _lanes(incident: Incident, lines: list[SignLine], fault: datetime) -> dict[str, Any]:
    layers = [*words.LAYERS, *sorted({_layer(line.row) for line in lines} - set(words.LAYERS))]
    marks = [{"at": 0.0, "words": "fault"}]
    if incident.detected_at != fault:
        marks.append({"at": (incident.detected_at - fault).total_seconds(), "words": "detected"})
    first, last = min(fault, incident.detected_at) - AROUND, max(fault, incident.detected_at) + AROUND
    return {
        "layers": [{"key": key, "words": words.LAYERS.get(key, key.capitalize())} for key in layers],
        "marks": marks,
        "signs": [_mark(line, fault, first, last) for line in lines],
    }


def _mark(line: SignLine, fault: datetime, first: datetime, last: datetime) -> dict[str, Any]:
    at, end = line.row.observed_at, line.row.last_at
    said = [line.after, line.layer, line.where, line.said, line.burst, "came later" if line.late else "", line.whose]
    mark: dict[str, Any] = {
        "n": line.number,
        "id": line.row.number,
        "layer": _layer(line.row),
        "at": (at - fault).total_seconds(),
        "stance": line.stance if line.stance in words.STANCES else "context",
        "said": ", ".join(part for part in said if part),
        "raw": line.raw[:READ_OUT_CHARS],
    }
    if not first <= at <= last:
        mark["edge"] = "before" if at < first else "after"
    elif end is not None and at < end:
        mark["until"] = (min(end, last) - fault).total_seconds()
    return mark | ({"late": True} if line.late else {})
