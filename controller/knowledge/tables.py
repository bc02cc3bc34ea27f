"""The tables that Relume comes with: `xid.csv` and `signatures.toml`."""

import csv
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from controller.decision.meanings import Meaning
from controller.knowledge.checks import COLUMNS, KnowledgeError, Place, lines, meaning, only, table
from worker_hooks.signs.codes import known, layer_of

HERE = Path(__file__).parent
XID, SIGNATURES = HERE / "xid.csv", HERE / "signatures.toml"
LOGS = ("kernel", "job")
XID_COLUMNS = ("code", "class", "weight", "about", "verdict", "action", "text", "vendors", "source")
CLASSES = ("application", "driver", "fabric", "hardware", "unknown")


@dataclass(frozen=True)
class Samples:
    """`yes` lines of a `log` give a sign with `code`, `no` lines do not."""

    code: str
    log: str
    yes: tuple[str, ...]
    no: tuple[str, ...]


@cache
def shipped() -> Mapping[str, Meaning]:
    """Every row by code."""
    rows: dict[str, Meaning] = {}
    for code, row, place in [*_xids(XID), *((code, row, place) for code, row, place in _signatures(SIGNATURES))]:
        if code in rows:
            raise place.error("", "the code has a row already")
        if not known(code):
            raise place.error("", "no reader gives this code (worker_hooks/signs/codes.py)")
        rows[code] = meaning(code, {k: v for k, v in row.items() if k in COLUMNS}, place)
        if rows[code].layer != layer_of(code):
            raise place.error("layer", f"{rows[code].layer!r}, its signs have {layer_of(code)!r}")
    return MappingProxyType(rows)


def samples() -> list[Samples]:
    """Those of the signatures that are read from lines."""
    found = []
    for code, row, place in _signatures(SIGNATURES):
        if "log" not in row:
            continue
        if row["log"] not in LOGS:
            raise place.error("log", f"{row['log']!r} is none of {', '.join(LOGS)}")
        found.append(Samples(code, row["log"], lines(row.get("yes"), "yes", place), lines(row.get("no"), "no", place)))
    return found


def _xids(path: Path) -> Iterator[tuple[str, Mapping[str, Any], Place]]:
    """A row's layer is that of its code."""
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        if tuple(reader.fieldnames or ()) != XID_COLUMNS:
            raise KnowledgeError(f"{path.name}: line 1: expected the columns {', '.join(XID_COLUMNS)}")
        for row in reader:
            place = Place(path.name, row["code"] or f"line {reader.line_num}")
            if None in row or None in row.values():
                raise place.error("", f"line {reader.line_num}: expected {len(XID_COLUMNS)} columns")
            if row["class"] not in CLASSES:
                raise place.error("class", f"{row['class']!r} is none of {', '.join(CLASSES)}")
            yield row["code"], {"layer": "kernel", **row}, place


def _signatures(path: Path) -> Iterator[tuple[str, Mapping[str, Any], Place]]:
    data = read_toml(path, path.name)
    only(data, {"signature"}, Place(path.name, ""))
    for code, row in table(data.get("signature", {}), Place(path.name, "signature")).items():
        place = Place(path.name, code)
        only(table(row, place), {*COLUMNS, "log", "yes", "no"}, place)
        yield code, row, place


def read_toml(path: Path, name: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KnowledgeError(f"{name}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise KnowledgeError(f"{name}: not TOML: {error}") from error
