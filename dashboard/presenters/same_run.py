"""Whether the resumed run is the same run: the answer in words, and one line for each check."""

from __future__ import annotations

from dataclasses import dataclass

from controller.models import Attempt, Recovery
from controller.queries.verification import CheckLine, Verification, fold, from_lines
from dashboard import formats, words
from dashboard.words import Word

PLACES = {"local": "on their own node", "peer": "brought from another node", "shared": "from shared storage"}
PASSED = ("PASS", "DEGRADED", "RESHARDED")
ANSWERS = {
    "PASS": "The same run",
    "DEGRADED": "The same run within limits",
    "RESHARDED": "The same state on another layout",
    "FAIL": "Another run",
}


@dataclass(frozen=True)
class VerifyLine:
    word: Word
    name: str
    text: str


@dataclass(frozen=True)
class SameRun:
    """`answer` "" while nothing was resumed."""

    word: Word
    answer: str
    lines: list[VerifyLine]


def same_run(recovery: Recovery | None, awaited: bool) -> SameRun:
    """`awaited`: something was requeued, so that an answer will come."""
    found = _verification(recovery)
    word, answer = _answer(recovery, found, awaited)
    return SameRun(word, answer, _lines(found) if found is not None else [])


def of_attempt(attempt: Attempt) -> SameRun | None:
    """What this attempt's own checks say; None where it resumed nothing."""
    if not attempt.checks:
        return None
    found = fold(attempt.checks, attempt.world_size)
    lines = _lines(found)
    if not found.outcome:
        ranks = f"{found.ranks} of {found.world_size or found.ranks} ranks"
        return SameRun(Word("", "run", "shield"), f"So far {ranks} have compared", lines)
    word = words.CHECK[found.outcome]
    return SameRun(word, f"{ANSWERS[found.outcome]}, {found.agreeing} of {len(found.lines)} agree", lines)


def _verification(recovery: Recovery | None) -> Verification | None:
    to_attempt = recovery.to_attempt if recovery is not None else None
    if to_attempt is not None and to_attempt.checks:
        return fold(to_attempt.checks, to_attempt.world_size)
    if recovery is not None and recovery.checks:
        return from_lines(recovery.checks)
    return None


def _answer(recovery: Recovery | None, found: Verification | None, awaited: bool) -> tuple[Word, str]:
    """The answer is the ledger's, which also waits for the first new step; a failed line needs no waiting."""
    if found is None:
        return Word("", "idle", "wait"), "Not known yet, no check has been made" if awaited else ""
    agree = f"{found.agreeing} of {len(found.lines)} agree"
    if found.outcome == "FAIL":
        return Word("", "bad", "bad"), f"No, {len(found.lines) - found.agreeing} of {len(found.lines)} differ"
    stamped = recovery is not None and (recovery.verification in PASSED or "verified" in recovery.stamps)
    if stamped and found.outcome == "RESHARDED":
        return Word("", "warn", "warn"), f"Yes, on another layout; {agree}"
    if stamped and found.outcome == "DEGRADED":
        return Word("", "warn", "warn"), f"Yes, within limits; {agree}"
    if stamped:
        return Word("", "ok", "ok"), f"Yes, {agree}"
    return Word("", "run", "shield"), f"So far yes, {agree}; the repeated steps are still compared"


def _lines(found: Verification) -> list[VerifyLine]:
    """The checks, and where the bytes came from where any were read on a node."""
    lines = [_verify_line(line) for line in found.lines]
    if found.restored:
        shares = [f"{formats.whole(count)} {PLACES[place]}" for place, count in found.restored]
        lines.append(VerifyLine(Word("", "ok", "shield"), "Shares read", ", ".join(shares)))
    return lines


def _verify_line(line: CheckLine) -> VerifyLine:
    kind, _, of = line.name.partition(":")
    name = words.CHECK_NAMES.get(kind, kind.replace("_", " ").capitalize()) + (f" ({of})" if of else "")
    ranks = f"{line.agreeing} of {line.ranks} rank{'' if line.ranks == 1 else 's'}"
    if line.outcome != "PASS":
        seen = line.why or f"{_short(line.actual)}, expected {_short(line.expected)}"
        text = f"rank {line.worst_rank}: {f'{line.code}, ' if line.code else ''}{seen}; {ranks} agree"
    elif line.same_everywhere and line.expected == line.actual and _readable(line.actual):
        text = f"{formats.recorded(line.actual)} = what was recorded, {ranks}"
    else:
        text = f"{ranks} agree with what was recorded"
    return VerifyLine(words.CHECK[line.outcome], name, text)


def _readable(text: str) -> bool:
    """A step or a rate says something to a reader; a digest or a structure only that it is equal."""
    return 0 < len(text) <= 48 and not text.startswith(("xxh3_128:", "sha256:", "crc32:")) and "{" not in text


def _short(text: str) -> str:
    """A digest is told by its beginning."""
    text = formats.recorded(text)
    return text if len(text) <= 48 else text[:32] + "…" + text[-8:]
