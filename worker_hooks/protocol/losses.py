"""Each rank's own record of its local losses (docs/formats.md section 6), read back: `{"step", "loss": hex float}`."""

import json
import re
from pathlib import Path

_NAME = re.compile(r"rank-(\d{5})\.g(\d+)\.jsonl")


def read_losses(run: Path, rank: int, *, before_generation: int | None = None, after_step: int = 0) -> dict[int, str]:
    """The kept curve of one rank: step to hex loss, where a later generation's step replaces an earlier one's.

    A torn last line, which a killed rank leaves, is dropped.
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


def _read(path: Path) -> dict[int, str]:
    found = {}
    for line in path.read_bytes().splitlines():
        try:
            item = json.loads(line)
            found[int(item["step"])] = float.fromhex(item["loss"]).hex()
        except (ValueError, KeyError, TypeError):
            continue
    return found
