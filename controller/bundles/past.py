"""What a bundle says of the time before: `history`, `attempts`, `attempts_same`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.bundles.fields import BundleError, Fields, lines_of
from controller.bundles.gather import Gathered
from controller.bundles.notes import ECC, NO, XID, hosts_in
from controller.decision.evidence import PastAttempt
from worker_hooks.signs.log import read_lines

PCI = re.compile(r"\b(?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?\b")
JOBS = re.compile(r"(?i)\bjobs?\s+\d+(?:\s*(?:,|and|,\s*and)\s*\d+)*")
PLACE = re.compile(r"GPC \d+, TPC \d+")
AGO = re.compile(r"(?i)(\d+(?:\.\d+)?)\s*(second|minute|min|hour|h|day|d|week)s?\b(?:\s+(?:ago|before|earlier))")
HOURS = {
    "second": 1 / 3600,
    "minute": 1 / 60,
    "min": 1 / 60,
    "hour": 1.0,
    "h": 1.0,
    "day": 24.0,
    "d": 24.0,
    "week": 168.0,
}


def history(bundle: Fields, gathered: Gathered) -> None:
    """Past errors as evidence of the controller's own memory. A sentence that denies something adds nothing."""
    value = bundle.get("history")
    items = value if isinstance(value, list) else [] if value is None else [value]
    for i, item in enumerate(items):
        where = f"{bundle.path('history')}[{i}]"
        if isinstance(item, str):
            _sentence(item, gathered)
        else:
            _entry(Fields.of(item, where), gathered)


def _entry(entry: Fields, gathered: Gathered) -> None:
    error = entry.text("error")
    job = entry.get("job")
    raw = f"job {job} on {entry.text('node')}: {error}" if job is not None else f"{entry.text('node')}: {error}"
    attrs: dict[str, str | int | float] = {**_details(error), "error": error, "of": code_of(error)}
    if job is not None:
        attrs["job"] = str(job)
    for key in ("pci", "hours_ago"):
        if isinstance(given := entry.get(key), str | int | float):
            attrs[key] = given
    gathered.note("history.error", raw, "history", entry.text("node") or None, **attrs)


def _sentence(text: str, gathered: Gathered) -> None:
    for part in re.split(r"[;\n]|\.\s", text):
        code = code_of(part)
        if not code or NO.search(part):
            continue
        attrs: dict[str, str | int | float] = {"error": part.strip(), "of": code}
        if found := PCI.search(part):
            attrs["pci"] = found[0]
        if ago := AGO.search(part):
            attrs["hours_ago"] = float(ago[1]) * HOURS[ago[2].lower()]
        attrs |= _details(part)
        jobs = JOBS.search(part)
        told = re.findall(r"\d+", jobs[0]) if jobs else []
        for job in told or [""]:
            raw = f"job {job}: {part.strip()}" if job else part.strip()
            for node in hosts_in(part) or (None,):
                gathered.note("history.error", raw, "history", node, **(attrs | ({"job": job} if job else {})))


def _details(error: str) -> dict[str, str | int | float]:
    """Where the words of an error say it: the peer that it names, and the place on the GPU."""
    signs = read_lines("kernel", [error]) or read_lines("job", [error])
    found: dict[str, str | int | float] = {
        key: signs[0].attrs[key] for key in ("peer", "pci", "location") if signs and key in signs[0].attrs
    }
    if "location" not in found and (place := PLACE.search(error)):
        found["location"] = place[0]
    return found


def code_of(error: str) -> str:
    """The code that an error told in words would have; "" where the words name none."""
    signs = read_lines("kernel", [error]) or read_lines("job", [error])
    if signs and signs[0].code != "python.exception":
        return signs[0].code
    if found := XID.search(error):
        return f"xid.{found[1]}"
    return "cuda.ecc" if ECC.search(error) or "ecc" in error.lower().split() else ""


@dataclass(frozen=True)
class Attempts:
    """`before`: earlier attempts, oldest first. `log`, `last_step`: the present one's. `same_before`: how many earlier
    ones in a row got no further than the present one."""

    before: tuple[PastAttempt, ...] = ()
    log: tuple[str, ...] = ()
    last_step: int | None = None
    same_before: int = 0


def attempts(bundle: Fields) -> Attempts:
    value = bundle.get("attempts")
    counted = max((bundle.whole("attempts_same") or 1) - 1, 0)
    if value is None or isinstance(value, int):
        return Attempts(same_before=counted)
    if not isinstance(value, list):
        raise BundleError(bundle.path("attempts"), "expected a list of attempts, the present one last")
    rows = [_attempt(item, f"{bundle.path('attempts')}[{i}]") for i, item in enumerate(value)]
    if not rows:
        return Attempts(same_before=counted)
    *earlier, (step, log) = rows
    before = tuple(PastAttempt(last_step=was, evidence=_evidence(lines)) for was, lines in earlier)
    return Attempts(before, tuple(log), step, max(counted, _in_a_row(before, step)))


def _attempt(item: Any, where: str) -> tuple[int | None, list[str]]:
    if not isinstance(item, Mapping):
        raise BundleError(where, 'expected an attempt such as {"last_step": 400, "log": []}')
    fields = Fields(item, where)
    return fields.whole("last_step"), lines_of(fields.get("log"), f"{where}: log")


def _evidence(lines: list[str]) -> tuple[Any, ...]:
    gathered = Gathered()
    gathered.job(lines)
    return tuple(gathered.evidence)


def _in_a_row(before: tuple[PastAttempt, ...], step: int | None) -> int:
    """Earlier attempts that had got as far: nothing was gained since them."""
    if step is None:
        return 0
    count = 0
    for attempt in reversed(before):
        if attempt.last_step is None or attempt.last_step < step:
            break
        count += 1
    return count
