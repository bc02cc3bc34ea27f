"""`relume checkpoints prune DIR --keep N`: old checkpoints go, by the rule of `protocol.retention_rule`.

Without `--yes` it only shows. An offline command cannot ask an attempt whether it lives, so what an attempt writes is
taken as its heartbeat: the newest generation file, its checkpoint folders, loss records and spool. After QUIET_S
without any of it nobody is taken to be writing; `--force REASON` overrides that, never the rule. The token is read
again before each removal. docs/checkpoints.md.
"""

import getpass
import json
import os
import shutil
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worker_hooks.cli import checkpoints_text as text
from worker_hooks.cli.checkpoints_places import Place
from worker_hooks.protocol import generations, trash
from worker_hooks.protocol.folder_state import Checkpoint, said
from worker_hooks.protocol.manifest import parse_folder
from worker_hooks.protocol.retention_rule import Folder, Verdict, decide
from worker_hooks.protocol.survey import PRUNED, Run
from worker_hooks.protocol.tiers import LOCAL

Json = dict[str, Any]
QUIET_S = 2 * 3600.0
LOCAL_KEPT = 2


@dataclass(frozen=True)
class Options:
    keep: int
    do_it: bool
    quarantined: bool
    force: str | None


def pruning(place: Place, options: Options, now: float) -> Json:
    """The JSON of the command; removes where `options.do_it`. Raises OSError for storage that fails as a whole."""
    return {
        "version": 1,
        "directory": str(place.directory),
        "dry_run": not options.do_it,
        "keep": options.keep,
        "runs": [_run(run, options, now) for run in place.runs],
    }


def exit_code(found: Json) -> int:
    """1 where something was refused or could not be removed."""
    return 1 if any((run["refused"] and not found["dry_run"]) or run["failed"] for run in found["runs"]) else 0


def _run(run: Run, options: Options, now: float) -> Json:
    verdicts = [*plan(run, options), *plan_local(run, options)]
    going = [verdict.name for verdict in verdicts if verdict.goes]
    found_here = [*run.checkpoints, *run.local]
    leftovers = [str(item.folder.relative_to(run.folder)) for item in found_here if item.state == "trash"]
    refused = None if options.force else living(run, now)
    found: Json = {
        "run_id": run.folder.name,
        "folder": str(run.folder),
        "goes": [{"folder": verdict.name, "why": verdict.reason} for verdict in verdicts if verdict.goes],
        "stays": [{"folder": verdict.name, "why": verdict.reason} for verdict in verdicts if not verdict.goes],
        "leftovers": leftovers,
        "frees_bytes": freed(run.folder / name for name in [*going, *leftovers]),
        "refused": refused,
        "removed": [],
        "failed": [],
    }
    if options.do_it and refused is None and run.newest is not None:
        _remove(run, run.newest.generation, going, leftovers, found)
        if found["removed"]:
            _record(run.folder, found, options, now)
    return found


def plan(run: Run, options: Options) -> list[Verdict]:
    """What would go and stay. What cannot be read stays."""
    known = [item for item in run.checkpoints if item.state not in ("trash", "unreadable")]
    verdicts = decide(
        [_folder(item) for item in known],
        newest_generation=run.newest.generation if run.newest else None,
        keep=options.keep,
        protected={run.choice.folder, _start(run)},
        quarantined=options.quarantined,
    )
    unread = [item for item in run.checkpoints if item.state == "unreadable"]
    return [*verdicts, *(Verdict(item.name, False, f"cannot be read: {item.reason}") for item in unread)]


def plan_local(run: Run, options: Options) -> list[Verdict]:
    """Of the index of what lies on the nodes; these follow it when the next attempt starts there."""
    verdicts = decide(
        [_folder(item) for item in run.local if item.state not in ("trash", "unreadable")],
        newest_generation=run.newest.generation if run.newest else None,
        keep=LOCAL_KEPT,
        quarantined=options.quarantined,
    )
    return [replace(verdict, name=f"{LOCAL}/{verdict.name}") for verdict in verdicts]


def _folder(item: Checkpoint) -> Folder:
    return Folder(
        name=item.name,
        step=item.step,
        generation=item.generation,
        counts=item.counts,
        verified=item.verified_at is not None,
        quarantined=item.state == "quarantined",
        damaged=item.state == "damaged",
        being_read=item.being_read,
    )


def _start(run: Run) -> str | None:
    """What the newest attempt started from, as far as can be told: the newest it accepted that is still good."""
    accepted = set(run.newest.accepted) if run.newest else set()
    good = [item for item in run.checkpoints if item.name in accepted and item.state == "committed"]
    return max(good, key=lambda item: parse_folder(item.name) or (0, 0)).name if good else None


def living(run: Run, now: float) -> str | None:
    """Why an attempt may be writing here, or None. What cannot be read counts as life."""
    if run.newest is None:
        return "no generation file says what counts"
    try:
        written, name = max(_signs_of_life(run), default=(0.0, ""))
    except OSError as error:
        return f"nobody can tell whether an attempt is writing: {said(error)}"
    if now - written >= QUIET_S:
        return None
    return (
        f"generation {run.newest.generation} may be writing: {name} was written {text.age(max(0.0, now - written))} ago"
    )


def _signs_of_life(run: Run) -> Iterator[tuple[float, str]]:
    assert run.newest is not None
    number = run.newest.generation
    yield _time(run.folder / generations.GENERATIONS / f"{number:06d}.json")
    for item in (*run.checkpoints, *run.local):
        if item.generation == number and item.state != "trash":
            yield _time(item.folder)
    for place, ending in (("losses", f".g{number}.jsonl"), ("spool", f".g{number}.jsonl")):
        for path in (run.folder / place).glob(f"*{ending}"):
            yield _time(path)


def _time(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, path.name
    except FileNotFoundError:
        return 0.0, path.name


def freed(folders: Iterable[Path]) -> int:
    """Bytes that come free: a file that a checkpoint which stays shares is not gone with one of its names."""
    names: Counter[tuple[int, int]] = Counter()
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    for folder in folders:
        for top, _, files in os.walk(folder):
            for name in files:
                try:
                    status = (Path(top) / name).lstat()
                except OSError:
                    continue
                names[status.st_dev, status.st_ino] += 1
                sizes[status.st_dev, status.st_ino] = (status.st_nlink, status.st_size)
    return sum(size for inode, (links, size) in sizes.items() if names[inode] >= links)


def _remove(run: Run, generation: int, going: list[str], leftovers: list[str], found: Json) -> None:
    for name in going:
        try:
            generations.check_token(run.folder, generation)
            if trash.remove(run.folder / name):
                found["removed"].append(name)
            else:
                found["failed"].append({"folder": name, "why": "somebody began to read it"})
        except generations.NotNewest as error:
            found["refused"] = str(error)
            return
        except FileNotFoundError:
            continue  # another one was faster
        except OSError as error:
            found["failed"].append({"folder": name, "why": said(error)})
    for name in leftovers:
        shutil.rmtree(run.folder / name, ignore_errors=True)
        found["removed"].append(name)


def _record(folder: Path, found: Json, options: Options, now: float) -> None:
    """One line per pruning: who removed what, and why it was forced."""
    line = {
        "version": 1,
        "at": now,
        "by": f"{getpass.getuser()}@{socket.gethostname()}",
        "keep": options.keep,
        "removed": found["removed"],
        "forced": options.force,
    }
    try:
        with (folder / PRUNED).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, sort_keys=True) + "\n")
    except OSError as error:
        found["failed"].append({"folder": PRUNED, "why": said(error)})


# --- for people ---------------------------------------------------------------------------------------------------


def lines(found: Json) -> Iterator[str]:
    for run in found["runs"]:
        yield text.plain(f"run {run['run_id']}, in {run['folder']}")
        verb = "would go" if found["dry_run"] else "goes"
        rows = [(verb, item["folder"], item["why"]) for item in run["goes"]]
        rows += [("stays", item["folder"], item["why"]) for item in run["stays"]]
        rows += [(verb, name, "left half removed") for name in run["leftovers"]]
        yield from (
            (text.plain(line) for line in text.table(("", "FOLDER", "WHY"), rows)) if rows else ["  nothing here"]
        )
        yield f"  {len(run['goes']) + len(run['leftovers'])} go, {text.size(run['frees_bytes'])} come free"
        yield from _outcome(run, found["dry_run"])
    if not found["runs"]:
        yield f"{found['directory']}: no run of ours; what others wrote is never removed"
    elif found["dry_run"]:
        yield "nothing was removed; --yes does it"


def _outcome(run: Json, dry: bool) -> Iterator[str]:
    if run["refused"]:
        word = "would be refused" if dry else "refused"
        yield text.plain(f"  {word}: {run['refused']} (--force REASON overrides, where a generation file can be read)")
    if not dry:
        yield f"  removed: {len(run['removed'])}"
    yield from (text.plain(f"  not removed: {item['folder']}: {item['why']}") for item in run["failed"])
