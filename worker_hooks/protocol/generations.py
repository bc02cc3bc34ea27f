"""Generations and what counts of the checkpoints on disk (docs/formats.md section 6), for agents and training alike.

Theory. Two attempts of one training job can be alive at once: Slurm's word never proves a process dead. So the attempt
that starts later mints a generation file with the next number (`minting`), and that file lists the checkpoints it
`accepted`, of each tier. A commit is the rename of a manifest (`committing`), preceded by a look at the newest
generation. A writer stopped between its look and its rename still renames, but its folder is on no list and its
generation is not the newest: nobody will ever load it.

Nothing here talks to another process; every function may be called by any of them at any time. Unreadable storage is an
OSError, a broken file a `MessageError`; a lost race is an answer, not an error.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from worker_hooks.protocol.durable import encode_json, replace_file
from worker_hooks.protocol.manifest import (
    MANIFEST,
    QUARANTINE,
    Broken,
    Generation,
    Manifest,
    Newer,
    RankFile,
    accepts,
    decode_generation,
    decode_manifest,
    decode_rank_file,
    parse_folder,
    rank_file_name,
    unsealed,
)
from worker_hooks.protocol.messages import MessageError
from worker_hooks.protocol.regular import NotRegular, read_small
from worker_hooks.protocol.tiers import LOCAL, SHARED, Tier, run_of, shelf

GENERATIONS = "generations"
_NUMBER = re.compile(r"([0-9]{1,18})\.json")


class NotNewest(Exception):
    """This generation was superseded. `newest` is the generation that holds the token now, 0 if there is none."""

    def __init__(self, own: int, newest: int) -> None:
        gone = f"generation {own} has no file here: another root on this rank, or the run's folder was removed"
        super().__init__(f"generation {own} was superseded by generation {newest}" if newest else gone)
        self.own = own
        self.newest = newest


def run_folder(root: Path, run_id: str) -> Path:
    """Where one training job keeps its checkpoints."""
    return root / run_id


# --- the fencing token ------------------------------------------------------------------------------------------


def newest_number(run: Path) -> int:
    """The highest generation minted, 0 if none. A listing, never a cached answer."""
    try:
        names = [entry.name for entry in (run / GENERATIONS).iterdir()]
    except FileNotFoundError:
        return 0
    return max((int(match[1]) for match in map(_NUMBER.fullmatch, names) if match), default=0)


def generation_path(run: Path, number: int) -> Path:
    return run / GENERATIONS / f"{number:06d}.json"


def read_generation(run: Path, number: int) -> Generation:
    """What that attempt claimed; the file must speak about this run and number. JSON of another shape is as broken as
    none."""
    path = generation_path(run, number)
    try:
        found = decode_generation(unsealed(_read_json(path), path.name))
    except (Broken, Newer):
        raise
    except MessageError as error:
        raise Broken(path.name, str(error)) from None
    if (found.run_id, found.generation) != (run.name, number):
        raise MessageError("generation", f"{number} of {run.name} says {found.generation} of {found.run_id}")
    return found


def newest(run: Path) -> Generation | None:
    """The generation that holds the token, None before the first was minted."""
    number = newest_number(run)
    return read_generation(run, number) if number else None


def newest_of_job(run: Path, job: Mapping[str, Any]) -> Generation | None:
    """The newest generation if it was minted for this `job` (every given key equal): what a follower waits for."""
    latest = newest(run)
    if latest is None or any(latest.job.get(key) != value for key, value in job.items()):
        return None
    return latest


def check_token(run: Path, generation: int) -> None:
    """Raises NotNewest unless `generation` holds the token. Call it before every commit and every prune."""
    number = newest_number(run)
    if number != generation:
        raise NotNewest(generation, number)


# --- checkpoints that count -------------------------------------------------------------------------------------


def accepted_folders(run: Path, tier: Tier = SHARED) -> list[str]:
    """Names of the committed, not quarantined folders that count by the acceptance rule; newest step first. Those of
    the LOCAL tier lie in `shelf(run, LOCAL)`."""
    return counting(run, newest(run), tier)


def counting(run: Path, token: Generation | None, tier: Tier = SHARED) -> list[str]:
    """What counts as long as `token` is the newest generation."""
    if token is None:
        return []
    return [
        folder.name
        for folder in step_folders(shelf(run, tier))
        if accepts(token, folder.name, tier) and (folder / MANIFEST).exists() and not (folder / QUARANTINE).exists()
    ]


def step_folders(shelf: Path) -> Iterator[Path]:
    """Checkpoint folders, highest step first and the later generation first among equals. A run without node-local
    checkpoints has no index of them."""
    try:
        found = [(parse_folder(entry.name), entry) for entry in shelf.iterdir()]
    except FileNotFoundError:
        if shelf.name != LOCAL:
            raise
        return
    for _, entry in sorted(((place, entry) for place, entry in found if place), reverse=True):
        yield entry


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a committed folder; it must speak about this folder."""
    manifest = decode_manifest(unsealed(_read_json(folder / MANIFEST), MANIFEST))
    if manifest.folder != folder.name or manifest.run_id != run_of(folder).name:
        raise MessageError("manifest", f"belongs to {manifest.run_id}/{manifest.folder}, found in {folder.name}")
    return manifest


def read_rank_file(folder: Path, rank: int) -> RankFile:
    source = decode_rank_file(_read_json(folder / rank_file_name(rank)))
    if source.rank != rank or parse_folder(folder.name) != (source.step, source.generation):
        raise MessageError("rank file", f"speaks about rank {source.rank} of step {source.step}, not this place")
    return source


def missing_ranks(folder: Path, world_size: int) -> list[int]:
    """Ranks whose rank file is not there yet."""
    return [rank for rank in range(world_size) if not (folder / rank_file_name(rank)).exists()]


def quarantine(folder: Path, *, reason: str, generation: int, now: float) -> None:
    """Never load this folder again; it stays for inspection."""
    note = {"version": 1, "reason": reason, "generation": generation, "at": now}
    replace_file(folder / QUARANTINE, encode_json(note))


# --- small steps ------------------------------------------------------------------------------------------------


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_small(path))
    except NotRegular as error:
        raise Broken(path.name, str(error.strerror)) from None
    except (ValueError, RecursionError) as error:
        raise Broken(path.name, f"not JSON: {error}") from None
