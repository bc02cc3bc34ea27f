"""What an agent can say about the hardware that it runs on: the optional `machine` of a message.

Only what an ordinary user may read; every list may be empty, and usually some are. The machine id of the operating
system is confidential by its own manual, so a digest of it travels.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_ITEMS = 64
MAX_CHARS = 128


@dataclass(frozen=True)
class MachineIdentity:
    """`macs`: burnt-in addresses of network cards. `guids`: of InfiniBand cards. `gpus`: UUIDs. `serials`:
    `product_uuid:…`, `product_serial:…`, `board_serial:…`, where they are readable."""

    machine_id: str | None = None
    macs: tuple[str, ...] = ()
    guids: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    serials: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.machine_id or self.macs or self.guids or self.gpus or self.serials)


def encode_machine(machine: MachineIdentity) -> dict[str, Any]:
    lists = {name: list(getattr(machine, name)) for name in ("macs", "guids", "gpus", "serials")}
    return {"machine_id": machine.machine_id, **lists}


def decode_machine(data: object) -> MachineIdentity | None:
    """None for what is absent or not understood: a message is never refused for what it says of its machine."""
    if not isinstance(data, dict):
        return None
    said = data.get("machine_id")
    identity = MachineIdentity(
        machine_id=said[:MAX_CHARS] if isinstance(said, str) and said else None,
        **{name: texts(data.get(name)) for name in ("macs", "guids", "gpus", "serials")},
    )
    return None if identity.empty else identity


def tidy(items: Iterable[str]) -> tuple[str, ...]:
    """Sorted, each once, bounded: the same machine always says the same."""
    return tuple(sorted({item.strip()[:MAX_CHARS] for item in items if item.strip()})[:MAX_ITEMS])


def texts(value: object) -> tuple[str, ...]:
    """A list of texts, tidied; whatever else is there says nothing."""
    return tidy(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
