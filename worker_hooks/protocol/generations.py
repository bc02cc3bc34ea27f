"""Generations and the commit of checkpoints on disk (docs/formats.md section 6), for agents and training alike.

Theory. Two attempts of one training job can be alive at once: Slurm's word never proves a process dead. So the attempt
that starts later mints a generation file with the next number, and that file lists the checkpoints it `accepted`. A
commit is the rename of a manifest, preceded by a look at the newest generation. A writer stopped between its look and
its rename still renames, but its folder is on no list and its generation is not the newest: nobody will ever load it.

Nothing here talks to another process; every function may be called by any of them at any time. Unreadable storage is an
OSError, a broken file a `MessageError`; a lost race is an answer, not an error.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from worker_hooks.protocol.durable import create_file, encode_json, replace_file, sync_folder
from worker_hooks.protocol.manifest import (
    MANIFEST,
    QUARANTINE,
    Generation,
    Manifest,
    RankFile,
    RankRef,
    accepts,
    decode_generation,
    decode_manifest,
    decode_rank_file,
    encode_generation,
    encode_manifest,
    parse_folder,
    rank_file_name,
)
from worker_hooks.protocol.messages import MessageError

GENERATIONS = "generations"
_MINT_ATTEMPTS = 100
# What reading a damaged folder may raise; storage that cannot be read raises another OSError, and that goes through.
_BROKEN = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    MessageError,
    KeyError,
    TypeError,
    ValueError,
    OverflowError,
)
_NUMBER = re.compile(r"([0-9]{1,18})\.json")


class NotNewest(Exception):
    """This generation was superseded. `newest` is the generation that holds the token now."""

    def __init__(self, own: int, newest: int) -> None:
        super().__init__(f"generation {own} was superseded by generation {newest}")
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


def read_generation(run: Path, number: int) -> Generation:
    """What that attempt claimed; the file must speak about this run and number."""
    found = decode_generation(_read_json(_generation_path(run, number)))
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


def mint(
    run: Path,
    *,
    node: str,
    world_size: int,
    now: float,
    job: Mapping[str, Any] | None = None,
    nodes: Sequence[str] = (),
    rendezvous: Mapping[str, Any] | None = None,
) -> Generation:
    """Take the token: the next generation, durable when this returns.

    First commits what the superseded generation wrote completely, then lists what counts. Two agents that mint at the
    same time get two numbers; the higher one holds the token. Until this one's file is there, the superseded attempt
    may commit and prune: a list that is out of date by then is minted again, or it would name what is gone.
    """
    (run / GENERATIONS).mkdir(parents=True, exist_ok=True)
    sync_folder(run)
    before: Generation | None = None
    for _ in range(_MINT_ATTEMPTS):
        commit_complete(run, now=now)
        before = before or newest(run)
        made = Generation(
            run_id=run.name,
            generation=newest_number(run) + 1,
            created_at=now,
            node=node,
            world_size=world_size,
            job=dict(job or {}),
            nodes=tuple(nodes),
            rendezvous=dict(rendezvous or {}),
            accepted=tuple(_counting(run, before)),
        )
        if not create_file(_generation_path(run, made.generation), encode_json(encode_generation(made))):
            before = None
        elif made.accepted == tuple(_counting(run, before)):
            return made
    raise OSError(f"{run / GENERATIONS}: another process took every number for {_MINT_ATTEMPTS} attempts")


# --- checkpoints that count -------------------------------------------------------------------------------------


def accepted_folders(run: Path) -> list[str]:
    """Names of the committed, not quarantined folders that count by the acceptance rule; newest step first."""
    return _counting(run, newest(run))


def _counting(run: Path, token: Generation | None) -> list[str]:
    """What counts as long as `token` is the newest generation."""
    if token is None:
        return []
    return [
        folder.name
        for folder in _step_folders(run)
        if accepts(token, folder.name) and (folder / MANIFEST).exists() and not (folder / QUARANTINE).exists()
    ]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a committed folder; it must speak about this folder."""
    manifest = decode_manifest(_read_json(folder / MANIFEST))
    if manifest.folder != folder.name or manifest.run_id != folder.parent.name:
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


def build_manifest(folder: Path, *, now: float) -> Manifest | None:
    """The manifest that a folder's rank files amount to; None while one is missing or a file is short or broken.

    None also where a rank says that its parameters are not finite: such a state is never worth going back to.
    """
    try:
        first = read_rank_file(folder, 0)
        world_size = int(first.run["world_size"])
        ranks = [read_rank_file(folder, rank) for rank in range(world_size)]
        if not all(_sizes_right(folder, rank) and rank.fingerprint.get("finite", True) for rank in ranks):
            return None
        return _manifest_of(folder, first, world_size, now)
    except _BROKEN:
        return None


def _manifest_of(folder: Path, first: RankFile, world_size: int, now: float) -> Manifest:
    """As a reader will get it. Raises one of _BROKEN where rank 0's file says what no manifest may say."""
    refs = tuple(
        RankRef(rank, rank_file_name(rank), _digest(folder / rank_file_name(rank))) for rank in range(world_size)
    )
    manifest = Manifest(
        run_id=folder.parent.name,
        generation=first.generation,
        step=first.step,
        created_at=now,
        world_size=world_size,
        digest_algorithm=str(first.run["digest_algorithm"]),
        ranks=refs,
        layout=dict(first.run.get("layout", {})),
        versions=dict(first.run.get("versions", {})),
        threads=int(first.run.get("threads", 1)),
        config_digest=first.run.get("config_digest"),
        fingerprint=first.fingerprint,
    )
    return decode_manifest(json.loads(encode_json(encode_manifest(manifest))))


def commit_folder(folder: Path, generation: int, *, now: float) -> Manifest | None:
    """Commit one complete folder: the rename of its manifest. None while incomplete; a committed one stays as it is.

    Raises NotNewest if `generation` no longer holds the token. The look comes last, right before the rename.
    """
    if (folder / MANIFEST).exists():
        return read_manifest(folder)
    manifest = build_manifest(folder, now=now)
    if manifest is None:
        return None
    check_token(folder.parent, generation)
    replace_file(folder / MANIFEST, encode_json(encode_manifest(manifest)))
    return manifest


def commit_complete(run: Path, *, now: float) -> list[str]:
    """Commit every complete folder of the newest generation, on its behalf (its successor, or its own agent).

    So it does with one that this generation accepted and whose manifest was lost since: everything it said is in the
    rank files. A race lost to a third generation ends it quietly: that one did the same.
    """
    token = newest(run)
    if token is None:
        return []
    committed = []
    for folder in _step_folders(run):
        if not accepts(token, folder.name) or (folder / MANIFEST).exists() or (folder / QUARANTINE).exists():
            continue
        try:
            if commit_folder(folder, token.generation, now=now) is not None:
                committed.append(folder.name)
        except NotNewest:
            break
    return committed


def quarantine(folder: Path, *, reason: str, generation: int, now: float) -> None:
    """Never load this folder again; it stays for inspection."""
    note = {"version": 1, "reason": reason, "generation": generation, "at": now}
    replace_file(folder / QUARANTINE, encode_json(note))


# --- small steps ------------------------------------------------------------------------------------------------


def _generation_path(run: Path, number: int) -> Path:
    return run / GENERATIONS / f"{number:06d}.json"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise MessageError(path.name, f"not JSON: {error}") from None


def _step_folders(run: Path) -> Iterator[Path]:
    """Checkpoint folders, highest step first and the later generation first among equals."""
    found = [(parse_folder(entry.name), entry) for entry in run.iterdir()]
    for _, entry in sorted(((place, entry) for place, entry in found if place), reverse=True):
        yield entry


def _sizes_right(folder: Path, rank: RankFile) -> bool:
    for entry in rank.files:
        try:
            if (folder / entry.name).stat().st_size != entry.bytes:
                return False
        except FileNotFoundError:
            return False
    return True


def _digest(path: Path) -> str:
    """Rank files are small; SHA-256 needs no extra package, and an agent has none."""
    return "sha256:" + sha256(path.read_bytes()).hexdigest()
