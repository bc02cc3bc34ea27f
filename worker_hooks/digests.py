"""Digests as checkpoints name them, `<algorithm>:<hex>` (docs/formats.md section 6): for training and the command line.

xxhash is imported where a digest asks for it, so that a folder with other digests is checked without it.
"""

import hashlib
import zlib
from typing import Any, Protocol


class DigestError(Exception):
    """This installation cannot compute the digest; the text says what it lacks."""


class Hasher(Protocol):
    def update(self, data: Any, /) -> None: ...
    def hexdigest(self) -> str: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Any, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def new_hasher(algorithm: str) -> Hasher:
    """Raises DigestError."""
    if algorithm == "xxh3_128":
        try:
            import xxhash
        except ImportError:
            raise DigestError("digests in xxh3_128 need the package xxhash: pip install xxhash") from None
        hasher: Hasher = xxhash.xxh3_128()
        return hasher
    if algorithm == "sha256":
        return hashlib.sha256()
    if algorithm == "crc32":
        return _Crc32()
    raise DigestError(f"unknown digest algorithm {algorithm!r}")


def algorithm_of(digest: str) -> str:
    return digest.partition(":")[0]
