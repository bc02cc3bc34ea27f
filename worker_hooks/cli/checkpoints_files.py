"""Checkpoint files that others wrote, looked at without running anything of theirs and without reading their tensors.

A file gives its kind, its step, its top-level keys where they can be told, and what is wrong with its bytes.
"""

import json
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from worker_hooks.protocol.folder_state import said
from worker_hooks.signs.pickle_outline import Opaque, read_outline
from worker_hooks.signs.plain_pickle import MAX_BYTES, RefusedPickle

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".safetensors")
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_STEP = re.compile(
    r"(?:^|[^a-z])(?:step|steps|iter|iteration|checkpoint|ckpt)[-_=. ]*0*(\d{1,15})(?!\d)", re.IGNORECASE
)
_STEP_KEYS = ("global_step", "step", "iteration", "iter", "num_updates", "train_step", "current_step")
_HEADER_MAX = 100 << 20
_NOT_RUN = "not readable without running code"


@dataclass(frozen=True)
class FileFacts:
    """`keys` None: they cannot be told, `why` says why. `problem`: the bytes cannot be a whole file of this kind."""

    path: Path
    kind: str
    bytes: int
    keys: Mapping[str, object] | None = None
    step: int | None = None
    why: str | None = None
    problem: str | None = None


def look_at_file(path: Path) -> FileFacts:
    """Raises OSError for storage that cannot be read."""
    size = path.stat().st_size
    if size == 0:
        return FileFacts(path, "file", 0, problem="zero bytes")
    if path.suffix == ".safetensors":
        return _safetensors(path, size)
    with path.open("rb") as file:
        begin = file.read(len(_LEGACY))
    if begin[:2] == b"PK":
        return _torch_zip(path, size)
    if begin == _LEGACY:
        return FileFacts(path, "torch.save (before torch 1.6)", size, why=_NOT_RUN)
    return FileFacts(path, "file", size, why="not a format that is known here")


def step_in_name(name: str) -> int | None:
    """`step_22500`, `checkpoint-500`, `last-step=12.ckpt`: the number, None without one."""
    found = _STEP.search(name)
    return int(found[1]) if found else None


def step_in(keys: Mapping[str, object]) -> int | None:
    """The step that top-level keys tell."""
    for name in _STEP_KEYS:
        value = keys.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def keys_of(value: object) -> Mapping[str, object] | None:
    """Top-level keys of an outline; those of a bare state dict are one part, the model."""
    if not isinstance(value, dict):
        return None
    keys = {str(key): item for key, item in value.items()}
    if keys and all(isinstance(item, Opaque) and "_rebuild_" in item.name for item in keys.values()):
        return {"state_dict": keys}
    return keys


def outline_of(data: bytes) -> tuple[object, str | None]:
    """The outline of a pickle, or why there is none."""
    try:
        return read_outline(data), None
    except RefusedPickle as error:
        return None, f"{_NOT_RUN}: {error}"


def _torch_zip(path: Path, size: int) -> FileFacts:
    """The index of a zip file stands at its end: one that was cut short has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            (entry,) = [item for item in archive.infolist() if item.filename.rpartition("/")[2] == "data.pkl"]
            if entry.file_size > MAX_BYTES:
                return FileFacts(path, "torch.save", size, why=f"its pickle is larger than {MAX_BYTES >> 20} MiB")
            data = archive.read(entry)
    except ValueError:
        return FileFacts(path, "zip file", size, why="not a file of torch.save")
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError) as error:
        return FileFacts(path, "torch.save", size, problem=f"cut short or broken: {said(error)}")
    value, why = outline_of(data)
    keys = keys_of(value)
    if keys is None:
        return FileFacts(path, "torch.save", size, why=why or "it holds no dict")
    lightning = "pytorch-lightning_version" in keys
    return FileFacts(path, "Lightning" if lightning else "torch.save", size, keys, step_in(keys))


def _safetensors(path: Path, size: int) -> FileFacts:
    """The header tells where the last tensor ends."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_HEADER_MAX, size - 8):
            return FileFacts(path, "safetensors", size, problem="cut short or broken: no whole header")
        text = file.read(length)
    try:
        header = json.loads(text)
        ends = [int(item["data_offsets"][1]) for name, item in header.items() if name != "__metadata__"]
    except (ValueError, OverflowError, RecursionError, KeyError, IndexError, TypeError, AttributeError):
        return FileFacts(path, "safetensors", size, problem="its header is broken")
    wanted = 8 + length + max(ends, default=0)
    problem = None if size == wanted else f"{size} bytes, its header tells of {wanted}"
    return FileFacts(path, "safetensors", size, {"state_dict": header}, problem=problem)
