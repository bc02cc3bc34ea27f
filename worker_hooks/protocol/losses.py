"""Each rank's own record of its local losses (docs/formats.md section 6): `{"step", "loss": hex float, "check"}`."""

import json
import re
import zlib
from pathlib import Path
from typing import Any

from worker_hooks.protocol.regular import read_small

_NAME = re.compile(r"rank-(\d{5})\.g(\d+)\.jsonl")


def loss_record(step: int, loss: str) -> dict[str, Any]:
    """One line of the record. `check` is what tells a damaged line from a run that goes another way."""
    return {"step": step, "loss": loss, "check": f"{zlib.crc32(f'{step} {loss}'.encode()):08x}"}


def read_losses(run: Path, rank: int, *, before_generation: int | None = None, after_step: int = 0) -> dict[int, str]:
    """The kept curve of one rank: step to hex loss, where a later generation's step replaces an earlier one's.

    A torn last line, which a killed rank leaves, is dropped, and so is one that does not match its check. Lines without
    a check are those of earlier versions.
    """
    files = {}
    for path in (run / "losses").glob(f"rank-{rank:05d}.g*.jsonl"):
        match = _NAME.fullmatch(path.name)
        if match and (before_generation is None or int(match[2]) < before_generation):
            files[int(match[2])] = path
    kept: dict[int, str] = {}
    for generation in sorted(files):
        kept.update(_read(files[generation]))
    return {step: kept[step] for step in sorted(kept) if step > after_step}


def _lines(path: Path) -> list[bytes]:
    """What is no file has no losses: they are a record to compare with, and no resume needs it."""
    try:
        return read_small(path).splitlines()
    except (FileNotFoundError, IsADirectoryError, ValueError):
        return []


def _read(path: Path) -> dict[int, str]:
    found = {}
    for line in _lines(path):
        try:
            item = json.loads(line)
            step, loss = int(item["step"]), float.fromhex(item["loss"]).hex()
            check = loss_record(step, item["loss"])["check"]
            if item.get("check", check) == check:
                found[step] = loss
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found
