"""Ranks that called different collectives: torch's debug mode and the flight recorder's analyzer say so in words."""

import re

from worker_hooks.signs.found import Found, short

_CULPRIT = re.compile(
    r"Culprit rank (?P<rank>\d{1,7}); Error type: (?P<kind>[A-Z_]+)(?P<text>,.*?)?(?=, Culprit rank |$)"
)
_MISSING = re.compile(r"missing ranks: \{(?P<ranks>[\d, ]{1,2000})\}?")
_DEBUG = re.compile(r"(?P<text>Detected mismatch between collectives on ranks.*)")
_SHAPES = re.compile(
    r"(?P<text>.{0,40}(?:expects same model across all ranks|inconsistent tensor shapes|"
    r"[Tt]ensor list.{0,20}inconsistent).*)"
)


def mismatch_found(text: str) -> list[Found]:
    """One for each rank that the text names; a rank that is missing is one that did not come."""
    if "Culprit rank" in text:
        return [
            Found("collective.mismatch", _attrs(match["kind"].lower(), match["text"] or ""), int(match["rank"]))
            for match in _CULPRIT.finditer(text)
        ]
    if "missing ranks" in text and (missing := _MISSING.search(text)):
        ranks = [int(rank) for rank in re.findall(r"\d{1,7}", missing["ranks"])[:64]]
        return [Found("collective.mismatch", _attrs("missing", text), rank) for rank in ranks]
    match = (
        _DEBUG.search(text)
        if "ismatch between" in text
        else _SHAPES.search(text)
        if "across all ranks" in text
        else None
    )
    return [Found("collective.mismatch", _attrs("calls", match["text"]))] if match else []


def _attrs(kind: str, text: str) -> dict[str, str | int | float | bool]:
    return {"kind": kind, "text": short(text.lstrip(", "))}
