"""Slurm's version numbers and what each version can do."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = re.compile(r"(?:slurm(?:-wlm)?\s+)?(\d{2})\.(\d{2})(?:\.(\d+))?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Year, month and patch: 22.05.8 is (22, 5, 8). Ordered."""

    year: int
    month: int
    micro: int = 0

    def __str__(self) -> str:
        return f"{self.year:02d}.{self.month:02d}.{self.micro}"

    @property
    def release(self) -> str:
        """The part that decides about formats and about pyslurm: "22.05"."""
        return f"{self.year:02d}.{self.month:02d}"

    @property
    def scontrol_json(self) -> bool:
        """`scontrol show ... --json` came with 23.02; sinfo and squeue have it from 22.05 on."""
        return (self.year, self.month) >= (23, 2)

    @property
    def squeue_excluded(self) -> bool:
        """`squeue --Format` knows ExcNodes from 24.05 on; the short format always did."""
        return (self.year, self.month) >= (24, 5)


def parse(text: str) -> Version:
    """From "slurm 22.05.8", "slurm-wlm 24.11.5" or "25.11.7". ValueError when there is no version in it."""
    found = _VERSION.match(text.strip())
    if not found:
        raise ValueError(f"no Slurm version in {text!r}")
    return Version(int(found.group(1)), int(found.group(2)), int(found.group(3) or 0))
