"""Digests of files and tensors, written `<algorithm>:<hex>`."""

import ctypes
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from worker_hooks import digests
from worker_hooks.digests import Hasher
from worker_hooks.protocol.durable import encode_json
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.files import reading

DEFAULT = "xxh3_128" if find_spec("xxhash") else "sha256"


def new_hasher(algorithm: str) -> Hasher:
    """Raises CheckpointError if this installation cannot compute `algorithm`."""
    try:
        return digests.new_hasher(algorithm)
    except digests.DigestError as error:
        raise CheckpointError(str(error)) from None


def file_digest(path: Path, algorithm: str) -> str:
    """Of all bytes of the file. Raises OSError."""
    hasher = new_hasher(algorithm)
    with reading.Reading() as reader:
        reader.read(path, [reading.Segment(0, path.stat().st_size, sink=hasher)], whole=True)
    return f"{algorithm}:{hasher.hexdigest()}"


def bytes_digest(data: Any, algorithm: str) -> str:
    """Of bytes in memory."""
    hasher = new_hasher(algorithm)
    hasher.update(data)
    return f"{algorithm}:{hasher.hexdigest()}"


def value_digest(value: Any, algorithm: str = DEFAULT) -> str:
    """Digest of a JSON value."""
    return bytes_digest(encode_json(value), algorithm)


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, detached, contiguous, on the CPU (one copy from a device, none for a plain CPU tensor)."""
    tensor = tensor.detach()
    to_local = getattr(tensor, "to_local", None)
    if to_local is not None:
        tensor = to_local()
    # A conjugated view says so in a flag: its memory is not its numbers.
    return tensor.resolve_conj().resolve_neg().cpu().contiguous()


def raw_bytes(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous CPU tensor, without a copy and without numpy. The tensor must outlive the view."""
    count = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * count).from_address(tensor.data_ptr())).cast("B") if count else memoryview(b"")


def tensors_digest(tensors: Mapping[str, torch.Tensor], algorithm: str = DEFAULT) -> str:
    """Digest over names, types, shapes and bits, in the order of the names."""
    hasher = new_hasher(algorithm)
    for name in sorted(tensors):
        local = local_tensor(tensors[name])
        hasher.update(f"{name}|{local.dtype}|{list(local.shape)}|".encode())
        hasher.update(raw_bytes(local))
    return f"{algorithm}:{hasher.hexdigest()}"
