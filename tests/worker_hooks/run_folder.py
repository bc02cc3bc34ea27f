"""A run's folder with checkpoints that hold no more than minting and committing look at, one rank at a time."""

from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.checkpoint_shelf import RUN_ID
from worker_hooks.protocol import generations, minting
from worker_hooks.protocol.durable import encode_json
from worker_hooks.protocol.manifest import (
    FileEntry,
    RankFile,
    encode_rank_file,
    folder_name,
    rank_file_name,
    rank_folder_name,
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return generations.run_folder(tmp_path, RUN_ID)


def mint(run: Path, **changes: Any) -> generations.Generation:
    return minting.mint(run, **{"node": "gpu1", "world_size": 2, "now": 1.0, **changes})


def write_rank(run: Path, rank: int, step: int, generation: int, world_size: int = 2) -> Path:
    folder = run / folder_name(step, generation)
    data = folder / rank_folder_name(rank)
    data.mkdir(parents=True)
    (data / "tensors.bin").write_bytes(b"12345678")
    entry = FileEntry(f"{rank_folder_name(rank)}/tensors.bin", 8, "crc32:9ae0daaf")
    content = RankFile(
        rank=rank,
        generation=generation,
        step=step,
        files=(entry,),
        random={},
        data={},
        fingerprint={"step": step},
        state={},
        losses=(),
        run={"world_size": world_size, "digest_algorithm": "crc32", "threads": 1},
    )
    (folder / rank_file_name(rank)).write_bytes(encode_json(encode_rank_file(content)))
    return folder


def write_folder(run: Path, step: int, generation: int) -> Path:
    write_rank(run, 0, step, generation)
    return write_rank(run, 1, step, generation)
