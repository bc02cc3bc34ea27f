"""`relume checkpoints verify`: every byte against its digest, and which tensor a flipped bit hit.

Read in one pass: the file's digest and those of its chunks come from the same pieces. Memory: one piece per file, and
the JSON of one rank. A lease keeps retention away meanwhile where one can be written. docs/checkpoints.md.
"""

import sys
import time
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from worker_hooks.cli import checkpoints_text as text
from worker_hooks.cli.checkpoints_files import SUFFIXES
from worker_hooks.cli.checkpoints_folders import Foreign
from worker_hooks.cli.checkpoints_index import INDEX, Chunk, read_index
from worker_hooks.cli.checkpoints_pieces import Pace, pieces
from worker_hooks.cli.checkpoints_places import Place
from worker_hooks.cli.checkpoints_stored import lease, read_manifest
from worker_hooks.digests import Hasher, algorithm_of, new_hasher
from worker_hooks.protocol import generations
from worker_hooks.protocol.folder_state import Checkpoint, said
from worker_hooks.protocol.manifest import FileEntry, RankFile, parse_folder, rank_file_name
from worker_hooks.protocol.messages import MessageError
from worker_hooks.protocol.regular import SMALL, NotRegular
from worker_hooks.protocol.survey import Run
from worker_hooks.protocol.tiers import LOCAL

Json = dict[str, Any]
_ALWAYS = ("committed", "damaged", "complete")
_BLINK_S = 0.2


def verification(place: Place, *, everything: bool, limit: float | None, progress: bool) -> Json:
    """The JSON of the command. `limit` in bytes a second. Raises DigestError."""
    wanted = [item for run in place.runs for item in run.checkpoints if _wanted(place, item, everything)]
    total = sum(item.bytes for item in wanted) + sum(item.bytes for item in place.foreign)
    bar = _Bar(total) if progress else None
    pace = Pace(limit, bar.show if bar else None)
    begun = time.monotonic()
    results = [_own(item, pace) for item in wanted] + [_foreign(item, pace) for item in place.foreign]
    if bar:
        bar.end()
    return {
        "version": 1,
        "directory": str(place.directory),
        "checkpoints": results,
        "skipped": [
            {"folder": item.name, "run_id": run.folder.name, "state": item.state, "reason": item.reason}
            for run in place.runs
            for item in run.checkpoints
            if not _wanted(place, item, everything)
        ]
        + [_elsewhere(run, item) for run in place.runs for item in run.local if item.state != "trash"],
        "bytes": pace.bytes,
        "seconds": round(time.monotonic() - begun, 3),
    }


def _elsewhere(run: Run, item: Checkpoint) -> Json:
    nodes = ", ".join(item.nodes) or "the nodes"
    reason = f"its bytes are on {nodes} and cannot be read from here"
    return {"folder": f"{LOCAL}/{item.name}", "run_id": run.folder.name, "state": item.state, "reason": reason}


def exit_code(found: Json) -> int:
    """0: something was checked and all of it is good. 1: something is bad. 2: nothing could be checked."""
    results = [item["result"] for item in found["checkpoints"]]
    if "bad" in results:
        return 1
    return 0 if "good" in results else 2


def lines(found: Json) -> Iterator[str]:
    for item in found["checkpoints"]:
        yield text.plain(f"{item['result']:<9}{item['name']}  {text.size(item['bytes'])} read, {item['files']} files")
        yield from (text.plain(f"         {problem}") for problem in item["problems"])
        if item["tensors"]:
            yield text.plain(f"         damaged tensors: {', '.join(item['tensors'])}")
    for item in found["skipped"]:
        yield text.plain(f"skipped  {item['folder']}  {item['state']}{': ' + item['reason'] if item['reason'] else ''}")
    if not found["checkpoints"]:
        yield "nothing to verify"


def _wanted(place: Place, item: Checkpoint, everything: bool) -> bool:
    """One checkpoint that was named is verified whatever its state."""
    if item.state in _ALWAYS or parse_folder(place.directory.name):
        return True
    return everything and item.state in ("superseded", "quarantined", "incomplete")


# --- ours ---------------------------------------------------------------------------------------------------------


class _Findings:
    """Of one checkpoint."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.tensors: list[str] = []
        self.files = 0


def _own(item: Checkpoint, pace: Pace) -> Json:
    found, before = _Findings(), pace.bytes
    with lease(item.folder):
        try:
            _check_folder(item, found, pace)
        except (OSError, MessageError) as error:
            found.problems.append(said(error))
    return {
        "name": f"{item.folder.parent.name}/{item.name}",
        "path": str(item.folder),
        "state": item.state,
        "result": "bad" if found.problems else "good",
        "files": found.files,
        "bytes": pace.bytes - before,
        "problems": found.problems,
        "tensors": sorted(set(found.tensors)),
    }


def _check_folder(item: Checkpoint, found: _Findings, pace: Pace) -> None:
    ranks = range(item.world_size or 0)
    if item.has_manifest:
        for ref in read_manifest(item.folder).ranks:
            _check_file(item.folder, FileEntry(ref.file, -1, ref.digest), [], found, pace)
    elif not ranks:
        found.problems.append("no rank file")
    for rank in ranks:
        try:
            own = generations.read_rank_file(item.folder, rank)
        except (OSError, MessageError) as error:
            if not item.has_manifest:
                found.problems.append(f"{rank_file_name(rank)}: {said(error)}")
            elif isinstance(error, MessageError):
                found.problems.append(said(error))
            continue
        _check_share(item.folder, own, found, pace)


def _check_share(folder: Path, own: RankFile, found: _Findings, pace: Pace) -> None:
    """The index first: it says which bytes are which tensor."""
    chunks: dict[str, list[Chunk]] = defaultdict(list)
    entries = sorted(own.files, key=lambda entry: not entry.name.endswith(f"/{INDEX}"))
    for entry in entries:
        _check_file(folder, entry, chunks.pop(entry.name, []), found, pace)
        if entry.name.endswith(f"/{INDEX}"):
            try:
                for chunk in read_index(folder, own.rank):
                    chunks[chunk.file].append(chunk)
            except (OSError, MessageError) as error:
                found.problems.append(said(error))
    found.problems += [f"{name}: the index places tensors in it, the rank file does not name it" for name in chunks]


def _check_file(folder: Path, entry: FileEntry, chunks: Sequence[Chunk], found: _Findings, pace: Pace) -> None:
    """`entry.bytes` -1: the length is not written anywhere, the digest covers it."""
    found.files += 1
    hasher, parts = new_hasher(algorithm_of(entry.digest)), _Parts(chunks)
    count, most = 0, SMALL if entry.bytes == -1 else entry.bytes
    try:
        for piece in pieces(folder / entry.name, pace):
            hasher.update(piece)
            parts.feed(piece)
            count += len(piece)
            if count > most:  # what follows was not written by us, however long it is
                count = (folder / entry.name).stat().st_size
                break
    except OSError as error:
        gone = isinstance(error, FileNotFoundError) and not isinstance(error, NotRegular)
        found.problems.append(f"{entry.name}: {'missing' if gone else said(error)}")
        return
    if entry.bytes not in (-1, count):
        found.problems.append(f"{entry.name} has {count} bytes, {entry.bytes} were written")
    elif f"{algorithm_of(entry.digest)}:{hasher.hexdigest()}" != entry.digest:
        found.problems.append(f"{entry.name} does not match its digest")
    damaged = parts.finish()
    found.tensors += damaged
    if damaged and not any(problem.startswith(entry.name) for problem in found.problems):
        found.problems.append(f"{entry.name}: tensors do not match the digests in their index")


class _Parts:
    """Digests of the chunks of one file, from its pieces in order. Chunks never overlap; padding belongs to none."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = sorted((chunk for chunk in chunks if chunk.digest), key=lambda chunk: (chunk.start, chunk.bytes))
        self._at = 0
        self._next = 0
        self._open: Hasher | None = None
        self._damaged: list[str] = []

    def feed(self, piece: memoryview) -> None:
        end = self._at + len(piece)
        while self._next < len(self._chunks) and self._chunks[self._next].start < end:
            chunk = self._chunks[self._next]
            first, last = max(chunk.start, self._at), min(chunk.start + chunk.bytes, end)
            self._hasher(chunk).update(piece[first - self._at : max(first, last) - self._at])
            if chunk.start + chunk.bytes > end:
                break
            self._close(chunk)
        self._at = end

    def finish(self) -> list[str]:
        """Keys of the tensors whose bytes are not those that were written, or are not there."""
        while self._next < len(self._chunks):
            self._close(self._chunks[self._next])
        return self._damaged

    def _hasher(self, chunk: Chunk) -> Hasher:
        if self._open is None:
            self._open = new_hasher(algorithm_of(chunk.digest or ""))
        return self._open

    def _close(self, chunk: Chunk) -> None:
        if f"{algorithm_of(chunk.digest or '')}:{self._hasher(chunk).hexdigest()}" != chunk.digest:
            self._damaged.append(chunk.key)
        self._open = None
        self._next += 1


# --- by others ----------------------------------------------------------------------------------------------------


def _foreign(item: Foreign, pace: Pace) -> Json:
    """A zip file of torch.save carries a CRC-32 per tensor; other kinds carry nothing to compare with."""
    problems, checked = list(item.problems), 0
    before = pace.bytes
    paths = [item.path] if item.path.is_file() else sorted(path for path in item.path.iterdir() if path.is_file())
    for path in paths:
        if path.suffix in SUFFIXES and path.stat().st_size and zipfile.is_zipfile(path):
            checked += 1
            problems += [f"{path.name}: {problem}" for problem in _bad_members(path, pace)]
    result = "bad" if problems else ("good" if checked else "unchecked")
    return {
        "name": item.path.name,
        "path": str(item.path),
        "state": item.kind,
        "result": result,
        "files": checked,
        "bytes": pace.bytes - before,
        "problems": problems or ([] if checked else ["it carries no digests: nothing to compare its bytes with"]),
        "tensors": [],
    }


def _bad_members(path: Path, pace: Pace) -> Iterator[str]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            try:
                with archive.open(entry) as member:
                    while count := len(member.read(1 << 20)):
                        pace.read(count)
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
                yield f"{entry.filename}: {error}"


class _Bar:
    """One line on standard error that is written over. `total` counts what is there, so the end may come early."""

    def __init__(self, total: int) -> None:
        self._total = max(total, 1)
        self._begun = self._shown = time.monotonic()

    def show(self, count: int) -> None:
        now = time.monotonic()
        if now - self._shown < _BLINK_S:
            return
        self._shown = now
        speed = text.size(int(count / max(now - self._begun, 0.001)))
        share = min(100, 100 * count // self._total)
        print(f"\r{share:3d} %  {text.size(count)} of {text.size(self._total)}  {speed}/s   ", end="", file=sys.stderr)

    def end(self) -> None:
        print("\r" + " " * 70 + "\r", end="", file=sys.stderr, flush=True)
