"""Shares on nodes, for tests of the tiers."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from tests.worker_hooks.conftest import Ranks
from worker_hooks.protocol.durable import encode_json
from worker_hooks.protocol.manifest import FileEntry, RankFile, encode_rank_file, parse_folder, rank_folder_name
from worker_hooks.training.files.digests import DEFAULT, file_digest

FOLDER = "step-00000120.g3"


def make_share(folder: Path, rank: int, size: int, *, generation: int = 3) -> bytes:
    """Files of a share in `folder`, and the rank file that describes them, which is returned and not written."""
    place = folder / rank_folder_name(rank)
    place.mkdir(parents=True, exist_ok=True)
    (place / "tensors.bin").write_bytes(random.Random(rank).randbytes(size))
    (place / "index.json").write_text("{}")
    files = tuple(
        FileEntry(f"{place.name}/{path.name}", path.stat().st_size, file_digest(path, DEFAULT))
        for path in sorted(place.iterdir())
    )
    step, _ = parse_folder(folder.name) or (0, 0)
    share = RankFile(rank, generation, step, files, {"state": {}}, {}, {"finite": True}, {}, (), {"world_size": 2})
    return encode_json(encode_rank_file(share))


def wait_for(answer: Callable[[], bool], started: Ranks | None = None) -> None:
    deadline = time.monotonic() + 60
    while not answer():
        assert time.monotonic() < deadline, started.text() if started else "it never came"
        time.sleep(0.01)
