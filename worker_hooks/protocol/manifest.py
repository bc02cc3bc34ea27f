"""Schema of the three files that make a checkpoint count: generation, rank file, manifest (docs/formats.md section 6).

Golden at version 1: what these readers accept today they accept for ever (tests/worker_hooks/golden). Writers add keys
freely, readers ignore keys they do not know, and a broken file is a `MessageError` that says where.
"""

import re
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any

from worker_hooks.protocol.durable import encode_json
from worker_hooks.protocol.messages import MessageError, Reader
from worker_hooks.protocol.tiers import LOCAL, SHARED, Tier

VERSION = 1
MANIFEST = "manifest.json"
QUARANTINE = "quarantine.json"
VERIFIED = "verified.json"
SEAL = "seal"
DIGESTS = ("xxh3_128", "crc32", "sha256")
_FOLDER = re.compile(r"step-(\d{8,})\.g(\d+)")
_DIGEST = re.compile(r"(xxh3_128:[0-9a-f]{32}|crc32:[0-9a-f]{8}|sha256:[0-9a-f]{64})")


class Broken(MessageError):
    """A file that is not what was written, as against one of another run or of a newer version."""


class Newer(MessageError):
    """What a later version of this package wrote: nothing is wrong with it."""


@dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint; `name` is relative to the folder and never leaves it."""

    name: str
    bytes: int
    digest: str


@dataclass(frozen=True)
class RankRef:
    rank: int
    file: str
    digest: str


@dataclass(frozen=True)
class RankFile:
    """What one rank wrote durably. `run` holds the manifest's common part, so that anybody can commit the folder;
    `saving` tells what the save itself was like."""

    rank: int
    generation: int
    step: int
    files: tuple[FileEntry, ...]
    random: dict[str, Any]
    data: dict[str, Any]
    fingerprint: dict[str, Any]
    state: dict[str, Any]
    losses: tuple[tuple[int, str], ...]
    run: dict[str, Any]
    saving: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    run_id: str
    generation: int
    step: int
    created_at: float
    world_size: int
    digest_algorithm: str
    ranks: tuple[RankRef, ...]
    layout: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    threads: int = 1
    config_digest: str | None = None
    fingerprint: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        return folder_name(self.step, self.generation)


@dataclass(frozen=True)
class Generation:
    """One attempt's claim on the training job; the one with the highest number is the fencing token."""

    run_id: str
    generation: int
    created_at: float
    node: str
    world_size: int
    job: dict[str, Any] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    rendezvous: dict[str, Any] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()
    accepted_local: tuple[str, ...] = ()
    problem: str | None = None  # why the file of the generation before this one could not be believed


def accepts(newest: Generation, folder: str, tier: Tier = SHARED) -> bool:
    """A manifest counts only if its generation is the newest or the newest one lists its folder, for that tier."""
    place = parse_folder(folder)
    accepted = newest.accepted_local if tier == LOCAL else newest.accepted
    return place is not None and (place[1] == newest.generation or folder in accepted)


# --- names ------------------------------------------------------------------------------------------------------


def folder_name(step: int, generation: int) -> str:
    return f"step-{step:08d}.g{generation}"


def parse_folder(name: str) -> tuple[int, int] | None:
    """(step, generation) of a checkpoint folder's name, or None for any other name."""
    match = _FOLDER.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def rank_file_name(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def rank_folder_name(rank: int) -> str:
    return f"rank-{rank:05d}.d"


def losses_file_name(rank: int, generation: int) -> str:
    return f"rank-{rank:05d}.g{generation}.jsonl"


# --- encoding ---------------------------------------------------------------------------------------------------


def encode_rank_file(rank: RankFile) -> dict[str, Any]:
    return _without(_encode(rank), "saving")


def encode_manifest(manifest: Manifest) -> dict[str, Any]:
    return _encode(manifest)


def encode_generation(generation: Generation) -> dict[str, Any]:
    return _without(_encode(generation), "accepted_local", "problem")


def _without(data: dict[str, Any], *optional: str) -> dict[str, Any]:
    """Keys that not every writer has are left out where they say nothing."""
    return {key: value for key, value in data.items() if value or key not in optional}


def _encode(value: RankFile | Manifest | Generation) -> dict[str, Any]:
    return {"version": VERSION, **{key: _plain(item) for key, item in asdict(value).items()}}


def _plain(value: Any) -> Any:
    """Tuples as lists, so that what is encoded equals what JSON gives back."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def sealed(data: dict[str, Any]) -> dict[str, Any]:
    """With a digest over all else: nothing else vouches for a generation file or a manifest, and a flipped bit in one
    is another name, step or digest."""
    return {**data, SEAL: _seal(data)}


def _seal(data: dict[str, Any]) -> str:
    """SHA-256, which needs no extra package: agents have none."""
    return "sha256:" + sha256(encode_json(data)).hexdigest()


# --- decoding ---------------------------------------------------------------------------------------------------


def unsealed(data: object, where: str) -> object:
    """As it was given to `sealed`. Raises Broken where it is something else; older writers set no seal."""
    if not isinstance(data, dict) or SEAL not in data:
        return data
    rest = {key: value for key, value in data.items() if key != SEAL}
    if data[SEAL] != _seal(rest):
        raise Broken(where, "does not match its seal")
    return rest


def decode_rank_file(data: object) -> RankFile:
    source = _versioned(data, "rank file")
    return RankFile(
        rank=source.integer("rank", least=0),
        generation=source.integer("generation", least=1),
        step=source.integer("step", least=0),
        files=tuple(_file_entry(item) for item in source.readers("files")),
        random=dict(source.reader("random").data),
        data=dict(source.reader("data").data),
        fingerprint=dict(source.reader("fingerprint").data),
        state=dict(source.reader("state").data) if "state" in source.data else {},
        losses=tuple(_loss(item, source.path("losses")) for item in source.data.get("losses", ())),
        run=dict(source.reader("run").data),
        saving=dict(source.reader("saving").data) if "saving" in source.data else {},
    )


def decode_manifest(data: object) -> Manifest:
    source = _versioned(data, "manifest")
    manifest = Manifest(
        run_id=source.text("run_id", 64),
        generation=source.integer("generation", least=1),
        step=source.integer("step", least=0),
        created_at=source.number("created_at"),
        world_size=source.integer("world_size", least=1),
        digest_algorithm=source.choice("digest_algorithm", DIGESTS),
        ranks=tuple(_rank_ref(item) for item in source.readers("ranks")),
        layout=dict(source.reader("layout").data),
        versions=dict(source.reader("versions").data),
        threads=source.integer("threads", least=1),
        config_digest=source.optional_text("config_digest"),
        fingerprint=dict(source.reader("fingerprint").data),
    )
    if len(manifest.ranks) != manifest.world_size or any(ref.rank != at for at, ref in enumerate(manifest.ranks)):
        raise MessageError(source.path("ranks"), f"expected ranks 0 to {manifest.world_size - 1} in order")
    return manifest


def decode_generation(data: object) -> Generation:
    source = _versioned(data, "generation")
    return Generation(
        run_id=source.text("run_id", 64),
        generation=source.integer("generation", least=1),
        created_at=source.number("created_at"),
        node=source.text("node", 255),
        world_size=source.integer("world_size", least=1),
        job=dict(source.reader("job").data),
        nodes=_texts(source, "nodes"),
        rendezvous=dict(source.reader("rendezvous").data),
        accepted=_texts(source, "accepted"),
        accepted_local=_texts(source, "accepted_local") if "accepted_local" in source.data else (),
        problem=source.optional_text("problem"),
    )


def _versioned(data: object, where: str) -> Reader:
    source = Reader.of(data, where)
    version = source.integer("version", least=1)
    if version != VERSION:
        raise Newer(source.path("version"), f"{version} is newer than this reader knows ({VERSION})")
    return source


def _texts(source: Reader, key: str) -> tuple[str, ...]:
    items = source.get(key, list)
    if not all(isinstance(item, str) for item in items):
        raise MessageError(source.path(key), "expected a list of texts")
    return tuple(items)


def _file_entry(item: Reader) -> FileEntry:
    return FileEntry(_inside(item, "name"), item.integer("bytes", least=0), _digest(item))


def _rank_ref(item: Reader) -> RankRef:
    return RankRef(item.integer("rank", least=0), _inside(item, "file"), _digest(item))


def _inside(item: Reader, key: str) -> str:
    """A relative path without `..`: a manifest must not make a reader open anything outside its folder."""
    name = item.text(key)
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise MessageError(item.path(key), f"{name[:80]!r} is not a path inside the folder")
    return name


def _digest(item: Reader) -> str:
    digest = item.text("digest", 128)
    if not _DIGEST.fullmatch(digest):
        raise MessageError(item.path("digest"), f"{digest[:80]!r} is not <algorithm>:<hex> of a known algorithm")
    return digest


def _loss(item: object, where: str) -> tuple[int, str]:
    if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], int) and isinstance(item[1], str)):
        raise MessageError(where, "expected pairs of step and hex float")
    return item[0], item[1]
