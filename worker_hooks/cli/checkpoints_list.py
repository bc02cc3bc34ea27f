"""`relume checkpoints list`: what is there, in which state, and which one a resume would take. docs/checkpoints.md."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worker_hooks.cli import checkpoints_foreign as foreign
from worker_hooks.cli import checkpoints_text as text
from worker_hooks.cli.checkpoints_folders import Foreign
from worker_hooks.cli.checkpoints_parts import Contents
from worker_hooks.cli.checkpoints_places import Place, look
from worker_hooks.protocol.folder_state import Checkpoint
from worker_hooks.protocol.survey import Run

Json = dict[str, Any]
_UNKNOWN_NAMED = 6
_NODES_NAMED = 8


def listing(directory: Path, now: float) -> Json:
    """The JSON of the command. Raises UnreadableDirectory."""
    place = look(directory)
    return {
        "version": 1,
        "directory": str(place.directory),
        "runs": [_run(run, now) for run in place.runs],
        "foreign": _foreign(place, now) if place.foreign else None,
        "others": list(place.others),
    }


def _run(run: Run, now: float) -> Json:
    return {
        "run_id": run.folder.name,
        "folder": str(run.folder),
        "generation": run.newest.generation if run.newest else None,
        "generations": list(run.generations),
        "node": run.newest.node if run.newest else None,
        "resume": {"folder": run.choice.folder, "step": run.choice.step, "why": run.choice.why},
        "latest": {"says": run.latest, "agrees": run.latest in (None, run.choice.folder)},
        "checkpoints": [_checkpoint(item, now) for item in run.checkpoints],
        "local": [_local(item, now) for item in run.local],
        "problems": list(run.problems),
    }


def _checkpoint(item: Checkpoint, now: float) -> Json:
    return {
        "folder": item.name,
        "step": item.step,
        "generation": item.generation,
        "state": item.state,
        "reason": item.reason,
        "counts": item.counts,
        "verified": item.verified_at is not None,
        "verified_at": item.verified_at,
        "created_at": item.created_at,
        "age_s": None if item.created_at is None else now - item.created_at,
        "bytes": item.bytes,
        "world_size": item.world_size,
        "being_read": item.being_read,
        "missing": list(item.missing),
        "problems": list(item.problems),
    }


def _local(item: Checkpoint, now: float) -> Json:
    """Verified is nobody's to say here: the bytes are elsewhere."""
    told = {key: value for key, value in _checkpoint(item, now).items() if not key.startswith("verified")}
    return {**told, "nodes": list(item.nodes), "copies": item.copies}


def _foreign(place: Place, now: float) -> Json:
    chosen, why = foreign.choose(place.foreign)
    return {
        "resume": {"path": str(chosen.path) if chosen else None, "step": chosen.step if chosen else None, "why": why},
        "checkpoints": [_foreign_one(item, now) for item in place.foreign],
        "alarms": foreign.alarms(place.foreign, place.pointers, chosen),
    }


def _foreign_one(item: Foreign, now: float) -> Json:
    return {
        "path": str(item.path),
        "kind": item.kind,
        "step": item.step,
        "step_from": item.step_from,
        "age_s": now - item.modified_at,
        "bytes": item.bytes,
        "usable": item.usable,
        "marked_committed": item.mark,
        "contents": _contents(item.contents) if item.contents else None,
        "problems": list(item.problems),
        "notes": list(item.notes),
    }


def _contents(held: Contents) -> Json:
    return {
        "full_state": held.full,
        "present": list(held.present),
        "lacks": list(held.lacks),
        "empty": list(held.empty),
        "unknown": [{"key": key, "resembles": part} for key, part in held.unknown],
    }


# --- for people ---------------------------------------------------------------------------------------------------


def lines(found: Json) -> Iterator[str]:
    """The same, as text."""
    for run in found["runs"]:
        yield from _run_lines(run)
    if found["foreign"]:
        yield from _foreign_lines(found["foreign"])
    if not found["runs"] and not found["foreign"]:
        yield f"{found['directory']}: no checkpoints"
    if found["others"]:
        names = ", ".join(text.plain(name) for name in found["others"][:20])
        yield f"also there, and no checkpoint: {names}{' and more' if len(found['others']) > 20 else ''}"


def _run_lines(run: Json) -> Iterator[str]:
    token = f"generation {run['generation']} ({run['node']})" if run["generation"] else "no generation"
    yield text.plain(f"run {run['run_id']}, {token}, in {run['folder']}")
    head = ("", "STEP", "GEN", "STATE", "VERIFIED", "AGE", "SIZE", "RANKS", "FOLDER", "NOTE")
    rows = [_row(item, item["folder"] == run["resume"]["folder"]) for item in run["checkpoints"]]
    yield from text.table(head, rows, indent="") if rows else ["  no checkpoint folders"]
    if run["local"]:
        yield from _local_lines(run["local"])
    yield f"resume takes: {run['resume']['folder'] or 'nothing'} ({run['resume']['why']})"
    newer = [item for item in run["local"] if item["counts"] and item["step"] > (run["resume"]["step"] or -1)]
    if newer:
        yield f"or, where the nodes still have them: {', '.join(item['folder'] for item in newer)}"
    if not run["latest"]["agrees"]:
        yield text.plain(f"warning: latest says {run['latest']['says']!r}: a stale hint, nothing follows it")
    for problem in run["problems"]:
        yield text.plain(f"warning: {problem}")


def _local_lines(found: list[Json]) -> Iterator[str]:
    yield "on the nodes, listed here (whether the bytes are still there cannot be told from here):"
    head = ("", "STEP", "GEN", "STATE", "AGE", "SIZE", "RANKS", "COPIES", "NODES", "NOTE")
    rows = [
        (
            " ",
            str(item["step"]),
            str(item["generation"]),
            item["state"],
            text.age(item["age_s"]),
            text.size(item["bytes"]),
            text.number(item["world_size"]),
            str(item["copies"]),
            text.plain(_some(item["nodes"])),
            _notes(item),
        )
        for item in found
    ]
    yield from text.table(head, rows, indent="")


def _some(nodes: list[str]) -> str:
    more = len(nodes) - _NODES_NAMED
    return ",".join(nodes[:_NODES_NAMED]) + (f" and {more} more" if more > 0 else "")


def _notes(item: Json) -> str:
    notes = [item["reason"] or "", "being read" if item["being_read"] else "", *item["problems"]]
    return text.plain("; ".join(note for note in notes if note))


def _row(item: Json, taken: bool) -> tuple[str, ...]:
    return (
        ">" if taken else " ",
        str(item["step"]),
        str(item["generation"]),
        item["state"],
        "yes" if item["verified"] else "no",
        text.age(item["age_s"]),
        text.size(item["bytes"]),
        text.number(item["world_size"]),
        text.plain(item["folder"]),
        _notes(item),
    )


def _foreign_lines(found: Json) -> Iterator[str]:
    yield "written by others"
    chosen = found["resume"]["path"]
    head = ("", "STEP", "KIND", "AGE", "SIZE", "PATH", "FOR A FULL RESUME IT LACKS")
    rows = []
    for item in found["checkpoints"]:
        name = Path(item["path"]).name
        step = text.number(item["step"]) + ("?" if item["step_from"] == "its name" else "")
        rows.append(
            (
                ">" if item["path"] == chosen else " ",
                step,
                item["kind"],
                text.age(item["age_s"]),
                text.size(item["bytes"]),
                text.plain(name),
                _lacks(item),
            )
        )
    yield from text.table(head, rows, indent="")
    for item in found["checkpoints"]:
        yield from (text.plain(f"  {Path(item['path']).name}: {line}") for line in _remarks(item))
    yield text.plain(f"to resume from: {Path(chosen).name if chosen else 'none'} ({found['resume']['why']})")
    yield from (text.plain(f"warning: {alarm}") for alarm in found["alarms"])


def _lacks(item: Json) -> str:
    if item["contents"] is None:
        return "cannot be told"
    return ", ".join(item["contents"]["lacks"]) or "nothing"


def _remarks(item: Json) -> Iterator[str]:
    yield from (f"do not load it: {problem}" for problem in item["problems"])
    if item["marked_committed"] is False:
        yield "do not load it: it has no mark that its save ended, and others here have one"
    yield from item["notes"]
    if item["contents"] is not None:
        for key in item["contents"]["unknown"][:_UNKNOWN_NAMED]:
            likely = f", probably meant as {key['resembles']}" if key["resembles"] else ""
            yield f"key {key['key'][:80]!r} is no part that is known{likely}"
        more = len(item["contents"]["unknown"]) - _UNKNOWN_NAMED
        if more > 0:
            yield f"{more} more keys that are not known"
        yield from (f"{part} is there but empty" for part in item["contents"]["empty"])
