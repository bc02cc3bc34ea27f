"""Knowledge: what each sign means. Relume's tables, then the site's overrides (docs/formats.md section 9)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from controller.decision.meanings import Knowledge, Meaning
from controller.knowledge.checks import COLUMNS, KnowledgeError, Place, meaning, only, table
from controller.knowledge.site import SiteRecogniser, SiteSignature, site_signature
from controller.knowledge.tables import read_toml, shipped
from worker_hooks.signs.codes import known
from worker_hooks.signs.recogniser import Recogniser

__all__ = ["KnowledgeError", "load", "overrides", "site_recognisers"]

_FAMILIES = ("xid", "sxid")
_CHANGEABLE = frozenset(COLUMNS) - {"layer"}


@dataclass(frozen=True)
class _Overrides:
    rows: Mapping[str, Meaning]
    signatures: tuple[SiteSignature, ...]


def load(override: Path | None = None) -> Knowledge:
    """Raises KnowledgeError that names file, row and column."""
    rows = dict(shipped())
    if override is not None:
        rows |= _read(override).rows
    return Knowledge(MappingProxyType(rows))


def site_recognisers(override: Path | None) -> list[Recogniser]:
    """Fresh recognisers of the site's own patterns."""
    return [] if override is None else [SiteRecogniser(signature) for signature in _read(override).signatures]


def overrides(override: Path | None) -> list[str]:
    """What an override changes, for people: `xid.109: weight weak -> hard`."""
    if override is None:
        return []
    changed: list[str] = []
    for code, row in _read(override).rows.items():
        before = shipped().get(code)
        if before is None:
            changed.append(f"{code}: new, {row.weight}, {row.verdict}: {row.text}")
            continue
        new, old = asdict(row), asdict(before)
        changed += [
            f"{code}: {column} {old[column]!r} -> {new[column]!r}" for column in COLUMNS if old[column] != new[column]
        ]
    return changed


def _read(path: Path) -> _Overrides:
    data = read_toml(path, str(path))
    only(data, {*_FAMILIES, "signature"}, Place(str(path), ""))
    rows: dict[str, Meaning] = {}
    signatures: list[SiteSignature] = []
    for family in _FAMILIES:
        for number, row in table(data.get(family, {}), Place(str(path), family)).items():
            code = f"{family}.{number}"
            rows[code] = _numbered(code, number, row, Place(str(path), code))
    for code, row in table(data.get("signature", {}), Place(str(path), "signature")).items():
        place = Place(str(path), code)
        if known(code):
            rows[code] = _changed(code, row, place)
            continue
        signatures.append(site_signature(code, table(row, place), place))
        rows[code] = signatures[-1].meaning
    return _Overrides(rows, tuple(signatures))


def _numbered(code: str, number: str, row: object, place: Place) -> Meaning:
    if number != "*" and not (number.isascii() and number.isdigit() and len(number) < 7 and str(int(number)) == number):
        raise place.error("", "expected the driver's number, as in [xid.109]")
    return _changed(code, row, place)


def _changed(code: str, row: object, place: Place) -> Meaning:
    """The columns that are given, over those of the row (or of its family's, where the number has none)."""
    changes = table(row, place)
    why = f"of a code that Relume knows only {', '.join(sorted(_CHANGEABLE))} can be changed"
    only(changes, _CHANGEABLE, place, why)
    if code.endswith(".*") and code not in shipped():
        raise place.error("", "no row has this code")
    base = Knowledge(shipped()).of(code)
    if base is None:
        raise place.error("", "no row has this code")
    values: dict[str, Any] = {column: value for column, value in asdict(base).items() if column in COLUMNS}
    return meaning(code, values | dict(changes), place)
