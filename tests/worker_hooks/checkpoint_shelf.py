"""Checkpoints of ours made of plain bytes, without torch: what tests of the offline commands look at."""

import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worker_hooks.cli import checkpoints_verify
from worker_hooks.cli.checkpoints_list import listing
from worker_hooks.cli.checkpoints_places import look
from worker_hooks.protocol import committing, generations, minting
from worker_hooks.protocol.durable import encode_json
from worker_hooks.protocol.manifest import (
    FileEntry,
    RankFile,
    encode_rank_file,
    folder_name,
    rank_file_name,
    rank_folder_name,
)

RUN_ID = "tj-4f2a9c0b11de"
NOW = 1_000_000.0
ALIGN = 64
Tensor = tuple[str, Sequence[int], bytes]
TENSORS: Mapping[str, Tensor] = {
    "model/weight": ("float32", (2, 2), bytes(range(16))),
    "optimizer/weight/exp_avg": ("float32", (2, 2), bytes(range(16, 32))),
}


def digest(data: bytes, algorithm: str = "sha256") -> str:
    if algorithm == "crc32":
        return f"crc32:{zlib.crc32(data):08x}"
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Shelf:
    """One run's folder with a clock that stands still at NOW; everything on it is a day old unless said otherwise."""

    def __init__(self, root: Path) -> None:
        self.run = generations.run_folder(root, RUN_ID)
        self.run.mkdir(parents=True, exist_ok=True)

    def mint(self, *, age_s: float = 86400.0, world_size: int = 1) -> generations.Generation:
        made = minting.mint(self.run, node="gpu1", world_size=world_size, now=NOW - age_s)
        self.date(age_s)
        return made

    def write(
        self,
        step: int,
        generation: int,
        tensors: Sequence[Mapping[str, Tensor]] = (TENSORS,),
        *,
        index_version: int = 2,
        algorithm: str = "sha256",
        **changes: Any,
    ) -> Path:
        """A complete folder, one mapping of tensors per rank, not committed."""
        folder = self.run / folder_name(step, generation)
        for rank, own in enumerate(tensors):
            files = _share(folder / rank_folder_name(rank), own, index_version, algorithm)
            content: dict[str, Any] = {
                "random": {"python": digest(b"%d" % step), "state": {"torch": "AAEC"}},
                "data": {"epoch": 0, "consumed": step},
                "fingerprint": {"step": step, "learning_rate": [(0.5).hex()]},
                "state": {"scheduler": {"last_epoch": step}},
                "run": {
                    "world_size": len(tensors),
                    "digest_algorithm": algorithm,
                    "threads": 1,
                    "layout": {"world_size": len(tensors)},
                    "versions": {"torch": "2.13.0"},
                },
                **changes,
            }
            found = RankFile(rank=rank, generation=generation, step=step, files=files, losses=(), **content)
            (folder / rank_file_name(rank)).write_bytes(encode_json(encode_rank_file(found)))
        self.date(86400.0)
        return folder

    def commit(self, step: int, generation: int, *args: Any, verified: bool = False, **options: Any) -> Path:
        folder = self.write(step, generation, *args, **options)
        assert committing.commit_folder(folder, generation, now=NOW - 3600.0) is not None
        if verified:
            (folder / "verified.json").write_bytes(encode_json({"version": 1, "at": NOW - 60.0, "bytes": 1}))
        self.date(86400.0)
        return folder

    def date(self, age_s: float) -> None:
        """Everything was last written so long before NOW."""
        for path in [self.run, *self.run.rglob("*")]:
            os.utime(path, (NOW - age_s, NOW - age_s))


def _share(folder: Path, tensors: Mapping[str, Tensor], version: int, algorithm: str) -> tuple[FileEntry, ...]:
    folder.mkdir(parents=True)
    data, chunks = bytearray(), []
    for key, (_, size, content) in tensors.items():
        data += bytes(-len(data) % ALIGN)
        offsets = [0] * len(size)
        chunk: dict[str, Any] = {"key": key, "offsets": offsets, "sizes": list(size), "start": len(data)}
        chunk["bytes"] = len(content)
        if version > 1:
            chunk |= {"file": "tensors.bin", "digest": digest(content, algorithm)}
        chunks.append(chunk)
        data += content
    kinds = {key: {"dtype": dtype, "size": list(size)} for key, (dtype, size, _) in tensors.items()}
    index = encode_json({"version": version, "tensors": kinds, "chunks": chunks})
    (folder / "tensors.bin").write_bytes(data)
    (folder / "index.json").write_bytes(index)
    return (
        FileEntry(f"{folder.name}/tensors.bin", len(data), digest(bytes(data), algorithm)),
        FileEntry(f"{folder.name}/index.json", len(index), digest(index, algorithm)),
    )


def flip(path: Path, offset: int) -> None:
    """One bit of one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def run_of(shelf: Shelf) -> dict[str, Any]:
    """What `list` says of the shelf's one run."""
    (run,) = listing(shelf.run, NOW)["runs"]
    found: dict[str, Any] = run
    return found


def verify(directory: Path, **options: Any) -> dict[str, Any]:
    """What `verify` says of a folder."""
    return checkpoints_verify.verification(
        look(directory), **{"everything": False, "limit": None, "progress": False, **options}
    )
