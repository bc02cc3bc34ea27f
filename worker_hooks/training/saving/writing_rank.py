"""One rank's part of a checkpoint, from the staged share to the rank file that says it is complete."""

import shutil
from pathlib import Path
from typing import Any

from worker_hooks.protocol.durable import create_file, encode_json, sync_folder
from worker_hooks.protocol.manifest import RankFile, encode_rank_file, rank_file_name, rank_folder_name
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.files.digests import DEFAULT
from worker_hooks.training.identity import Identity
from worker_hooks.training.saving.share_writer import Written, write_share
from worker_hooks.training.saving.shares import own_key
from worker_hooks.training.saving.snapshot import Snapshot
from worker_hooks.training.state import fingerprint, random_state


def write(folder: Path, me: Identity, snapshot: Snapshot, kept: list[Path]) -> Written:
    """The share's files, durable when this returns; the rank file does not vouch for them yet. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix = own_key(me.rank, "")
    names = (key.removeprefix(prefix) for key in snapshot.share.keys)
    checked = [index for index, name in enumerate(names) if name in snapshot.parameters]
    return write_share(folder, me.rank, snapshot.staged, DEFAULT, checked=checked, kept=kept)


def describe(me: Identity, snapshot: Snapshot, written: Written, saving: dict[str, Any]) -> bytes:
    """The rank file. The same bytes on every tier."""
    rank_file = RankFile(
        rank=me.rank,
        generation=me.generation,
        step=snapshot.step,
        files=written.files,
        random={**random_state.digests(snapshot.random), "state": snapshot.random},
        data=snapshot.data,
        fingerprint={
            **snapshot.fingerprint,
            **_digests(snapshot, me.rank),
            "finite": written.finite,
        },
        state=snapshot.state,
        losses=snapshot.losses,
        run=snapshot.run,
        saving=saving,
    )
    return encode_json(encode_rank_file(rank_file))


def vouch(folder: Path, rank: int, rank_file: bytes) -> None:
    """From now on this rank's part of `folder` is complete. Raises OSError, CheckpointError."""
    sync_folder(folder.parent)
    if not create_file(folder / rank_file_name(rank), rank_file):
        raise CheckpointError(f"{folder.name}: rank {rank} was saved there before")


def _digests(snapshot: Snapshot, rank: int) -> dict[str, Any]:
    """Over the staged copies; written in pieces there are none, and training waits, so over the tensors themselves."""
    prefix = own_key(rank, "")
    tensors = dict(zip(snapshot.share.keys, snapshot.staged.tensors, strict=True))
    own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    objects = {name: snapshot.state[name] for name in snapshot.objects}
    optimizers = {name: snapshot.state[name] for name in snapshot.optimizers}
    return {
        "settings": fingerprint.settings_digest(optimizers, DEFAULT),
        "objects": fingerprint.object_digests(objects, own, DEFAULT),
    }


def remove(folder: Path, rank: int) -> None:
    """What a failed save left of this rank's share. One that a rank file vouches for stays."""
    if not (folder / rank_file_name(rank)).exists():
        shutil.rmtree(folder / rank_folder_name(rank), ignore_errors=True)
