"""Reads what an ordinary user may know of the hardware: network cards, InfiniBand, GPUs, serial numbers.

A node name says nothing about the machine behind it; a board that was swapped overnight must not inherit the other
one's history. Everything is read below `root`, bounded, and nothing raises: what cannot be read is left out.
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from worker_hooks.protocol.machine import MAX_ITEMS, MachineIdentity, tidy

MAX_BYTES = 4096
SERIALS = ("product_uuid", "product_serial", "board_serial")
# What boards say that were never given a number.
NOT_SERIALS = frozenset(
    {"", "0", "none", "n/a", "unknown", "default string", "not specified", "not available", "system serial number"}
    | {"to be filled by o.e.m.", "chassis serial number", "0123456789", "123456789"}
)
PERMANENT = "0"  # addr_assign_type: burnt in, neither random nor set by anybody
ETHERNET = "1"


def read_identity(root: Path = Path("/")) -> MachineIdentity:
    return MachineIdentity(
        machine_id=_machine_id(root),
        macs=tidy(_macs(root / "sys/class/net")),
        guids=tidy(_guids(root / "sys/class/infiniband")),
        gpus=tidy(_gpus(root / "proc/driver/nvidia/gpus")),
        serials=tidy(_serials(root / "sys/class/dmi/id")),
    )


def read_aside(keep: Callable[[MachineIdentity], None], root: Path = Path("/")) -> None:
    """On a thread of its own: a driver that lost its GPU may not answer for minutes, and nobody waits for that."""

    def read() -> None:
        identity = read_identity(root)
        if not identity.empty:
            keep(identity)

    threading.Thread(target=read, name="relume-machine", daemon=True).start()


def _text(path: Path) -> str:
    """ "" for what is not there or not for us."""
    with suppress(OSError, ValueError), path.open("rb") as file:
        return file.read(MAX_BYTES).decode("utf-8", "replace").strip()
    return ""


def _folders(path: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(path.iterdir())[:MAX_ITEMS]
    return []


def _machine_id(root: Path) -> str | None:
    text = _text(root / "etc/machine-id")
    return hashlib.sha256(f"relume {text}".encode()).hexdigest()[:32] if text else None


def _macs(net: Path) -> Iterator[str]:
    """Of interfaces with a device behind them: bridges, veths and other inventions of software have none. A card in a
    bond carries the bond's address; its own stands beside."""
    for interface in _folders(net):
        if not (interface / "device").exists() or _text(interface / "type") != ETHERNET:
            continue
        burnt_in = _text(interface / "bonding_slave/perm_hwaddr")
        if not burnt_in and _text(interface / "addr_assign_type") == PERMANENT:
            burnt_in = _text(interface / "address")
        if any(c not in "0:" for c in burnt_in):
            yield burnt_in.lower()


def _guids(infiniband: Path) -> Iterable[str]:
    found = (_text(card / "node_guid").lower() for card in _folders(infiniband))
    return (guid for guid in found if any(c not in "0:" for c in guid))


def _gpus(gpus: Path) -> Iterator[str]:
    """A driver in trouble prints question marks for a UUID."""
    for gpu in _folders(gpus):
        for line in _text(gpu / "information").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "GPU UUID" and "?" not in value:
                yield value.strip()


def _serials(dmi: Path) -> Iterator[str]:
    for name in SERIALS:
        value = _text(dmi / name)
        if value.lower() not in NOT_SERIALS:
            yield f"{name}:{value}"
