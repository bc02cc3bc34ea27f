"""The carrier of network interfaces: those named as the training network's, and those under RoCE ports."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from worker_hooks.signs import sysfs
from worker_hooks.signs.counting import counted
from worker_hooks.signs.sign import Sign

SOURCE = "link"
_UP = 0x1  # IFF_UP of /sys/class/net/*/flags


@dataclass(frozen=True)
class Interface:
    """`present`: the kernel has it. `wanted_up`: an administrator has it up. `carrier`: None where it is not to be read
    (an interface that is down refuses). `losses`: how often the carrier was lost since the interface was made."""

    name: str
    present: bool
    wanted_up: bool = False
    carrier: bool | None = None
    losses: int | None = None


def roce_interfaces(root: Path) -> list[str]:
    """The network interfaces that InfiniBand devices with an Ethernet link speak through."""
    names: set[str] = set()
    for device in sysfs.folders(root / "sys/class/infiniband"):
        for port in sysfs.folders(device / "ports"):
            if (sysfs.text(port / "link_layer") or "").lower() == "ethernet":
                names |= {name for name in (sysfs.text(port / "gid_attrs/ndevs/0"),) if name}
    return sorted(names)


def read_interfaces(root: Path, names: Iterable[str]) -> dict[str, Interface]:
    return {name: _interface(root / "sys/class/net" / name) for name in names}


def carrier_signs(
    before: Mapping[str, Interface] | None, now: Mapping[str, Interface], seen_up: Iterable[str] = ()
) -> list[Sign]:
    """`seen_up`: interfaces that have had a carrier at an earlier reading, or must have one. One that an administrator
    took down has lost nothing by itself."""
    signs = []
    must = set(seen_up)
    for name, interface in now.items():
        old = before.get(name) if before else None
        times = _lost(old, interface)
        if name in must and not interface.present:
            signs.append(_sign(name, f"{name}: the interface is gone"))
        elif name in must and interface.wanted_up and interface.carrier is False:
            signs.append(_sign(name, f"{name}: no carrier"))
        elif times and interface.carrier:
            signs.append(_sign(name, f"{name}: the carrier was lost and came back", times))
    return signs


def _lost(old: Interface | None, now: Interface) -> int:
    if old is None or old.losses is None or now.losses is None:
        return 0
    return counted(old.losses, now.losses)


def _sign(name: str, raw: str, times: int = 1) -> Sign:
    return Sign("link.carrier_lost", raw, "network", SOURCE, attrs={"device": name}, count=times)


def _interface(folder: Path) -> Interface:
    if not folder.exists():
        return Interface(folder.name, present=False)
    carrier = sysfs.number(folder / "carrier")
    losses = sysfs.number(folder / "carrier_down_count")
    return Interface(
        name=folder.name,
        present=True,
        wanted_up=bool((sysfs.number(folder / "flags") or 0) & _UP),
        carrier=None if carrier is None else carrier == 1,
        losses=_half(sysfs.number(folder / "carrier_changes")) if losses is None else losses,
    )


def _half(changes: int | None) -> int | None:
    """Kernels before 4.16 count both directions in one number."""
    return None if changes is None else changes // 2
