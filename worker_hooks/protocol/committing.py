"""The commit of a checkpoint folder on shared storage, of either tier (docs/formats.md section 6; see `generations`).

Everything that a manifest says is in the rank files, so anybody can commit for anybody, at any time.
"""

import json
from hashlib import sha256
from pathlib import Path

from worker_hooks.protocol.durable import encode_json, replace_file
from worker_hooks.protocol.generations import (
    NotNewest,
    check_token,
    newest,
    read_manifest,
    read_rank_file,
    step_folders,
)
from worker_hooks.protocol.manifest import (
    MANIFEST,
    QUARANTINE,
    Generation,
    Manifest,
    RankFile,
    RankRef,
    accepts,
    decode_manifest,
    encode_manifest,
    rank_file_name,
    sealed,
)
from worker_hooks.protocol.messages import MessageError
from worker_hooks.protocol.regular import read_small
from worker_hooks.protocol.tiers import LOCAL, TIERS, run_of, shelf, tier_of

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


def build_manifest(folder: Path, *, now: float) -> Manifest | None:
    """The manifest that a folder's rank files amount to; None while one is missing or a file is short or broken.

    None also where a rank says that its parameters are not finite: such a state is never worth going back to. Of a
    node-local checkpoint the files are elsewhere: there the rank files alone are the word.
    """
    try:
        first = read_rank_file(folder, 0)
        world_size = int(first.run["world_size"])
        ranks = [read_rank_file(folder, rank) for rank in range(world_size)]
        if not all(rank.fingerprint.get("finite", True) for rank in ranks):
            return None
        if tier_of(folder) != LOCAL and not all(_sizes_right(folder, rank) for rank in ranks):
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
        run_id=run_of(folder).name,
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
    check_token(run_of(folder), generation)
    replace_file(folder / MANIFEST, encode_json(sealed(encode_manifest(manifest))))
    return manifest


def commit_complete(run: Path, *, now: float, token: Generation | None = None) -> list[str]:
    """Commit every complete folder of the newest generation, on its behalf (its successor, or its own agent). Returns
    their paths in the run. `token`: what is known of that generation, where the caller knows.

    So it does with one that this generation accepted and whose manifest was lost since: everything it said is in the
    rank files. A race lost to a third generation ends it quietly: that one did the same.
    """
    token = token or newest(run)
    if token is None:
        return []
    committed = []
    for folder in (folder for tier in TIERS for folder in step_folders(shelf(run, tier))):
        accepted = accepts(token, folder.name, tier_of(folder))
        if not accepted or (folder / MANIFEST).exists() or (folder / QUARANTINE).exists():
            continue
        try:
            if commit_folder(folder, token.generation, now=now) is not None:
                committed.append(str(folder.relative_to(run)))
        except NotNewest:
            break
    return committed


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
    return "sha256:" + sha256(read_small(path)).hexdigest()
