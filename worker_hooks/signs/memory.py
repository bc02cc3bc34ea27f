"""Memory pressure of the whole host, from `/proc/meminfo` and the kernel's pressure stall information.

A job that fills its own limit stalls in its own group; the host is short only when little is available to anybody.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from worker_hooks.signs import sysfs
from worker_hooks.signs.sign import Scalar, Sign

SOURCE = "memory"
OUT_BELOW = 0.01  # of the memory available: nearly nothing, whatever the stalls
SHORT_BELOW = 0.05  # ... little, and a fault only together with stalls
STALLED_ABOVE = 0.10  # of the last ten seconds in which every task that could run waited for memory
_FIELD = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB", re.MULTILINE)
_STALLS = re.compile(r"^full avg10=(\d+(?:\.\d+)?)", re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """`stalled`: None where the kernel does not tell it."""

    available: float
    stalled: float | None


def read_memory(root: Path) -> Memory | None:
    """None: this kernel does not say how much is available."""
    fields = {name: int(value) for name, value in _FIELD.findall(sysfs.text(root / "proc/meminfo") or "")}
    if not fields.get("MemTotal") or "MemAvailable" not in fields:
        return None
    stalls = _STALLS.search(sysfs.text(root / "proc/pressure/memory") or "")
    return Memory(fields["MemAvailable"] / fields["MemTotal"], float(stalls[1]) / 100 if stalls else None)


def memory_signs(now: Memory) -> list[Sign]:
    short = now.available < SHORT_BELOW and (now.stalled or 0.0) >= STALLED_ABOVE
    if not short and now.available >= OUT_BELOW:
        return []
    attrs: dict[str, Scalar] = {"available_fraction": round(now.available, 4)}
    raw = f"memory: {now.available:.1%} available"
    if now.stalled is not None:
        attrs["stalled_fraction"] = round(now.stalled, 4)
        raw += f", all tasks stalled for {now.stalled:.0%} of the last 10 s"
    return [Sign("node.memory_pressure", raw, "node", SOURCE, attrs=attrs)]
