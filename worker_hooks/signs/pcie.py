"""Width and speed of the PCIe links of GPUs and network cards, against what both ends of the link can do.

A GPU at rest lowers its link's speed to save power, so its speed counts only while it works; width does not change
by itself. A card in a narrower slot is no fault: the limit is the lower of the card's and the slot's.

The readings' form is that of Linux's sysfs; run on made-up trees, never on a GPU's host.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from worker_hooks.signs import sysfs
from worker_hooks.signs.sign import Scalar, Sign

SOURCE = "pcie"
NVIDIA, MELLANOX = 0x10DE, 0x15B3
_DISPLAY = (0x0300, 0x0302)  # classes of graphics cards and of those without a connector
_NETWORK = (0x0200, 0x0207)  # Ethernet and InfiniBand
_SPEED = re.compile(r"(?P<gts>\d+(?:\.\d+)?)\s*GT/s")
_WIDTHS = range(1, 33)  # a device that has left the bus answers with ones: 63


@dataclass(frozen=True)
class Link:
    """`pci`: without the function (`0000:9b:00`). Speeds in GT/s. The `max_` are what both ends can do."""

    pci: str
    gpu: bool
    driver: str | None
    width: int
    max_width: int
    speed: float
    max_speed: float

    @property
    def narrow(self) -> bool:
        return self.width < self.max_width

    @property
    def slow(self) -> bool:
        return self.speed < self.max_speed


def read_links(root: Path) -> dict[str, Link] | None:
    """By PCI address; None where the host has no PCI bus at all. A device whose link cannot be read is left out."""
    bus = root / "sys/bus/pci/devices"
    if not bus.is_dir():
        return None
    return {link.pci: link for device in sysfs.folders(bus) if (link := _link(device)) is not None}


def nvidia_gpus(links: Mapping[str, Link]) -> list[str]:
    """GPUs that NVIDIA's driver has taken; one given to a virtual machine is not ours to miss."""
    return [pci for pci, link in links.items() if link.gpu and link.driver == "nvidia"]


def link_signs(before: Mapping[str, Link] | None, now: Mapping[str, Link], busy: Collection[str] = ()) -> list[Sign]:
    """`busy`: PCI addresses of GPUs at work at both readings. Said from the second reading in a row on: a link that is
    being trained, or wakes up, is narrow and slow for a moment."""
    return [_sign(link) for pci, link in now.items() if before and pci in before and _bad(before[pci], link, busy)]


def _bad(before: Link, now: Link, busy: Collection[str]) -> bool:
    if before.narrow and now.narrow:
        return True
    works = not now.gpu or now.pci in busy
    return works and before.slow and now.slow


def _sign(link: Link) -> Sign:
    raw = f"{link.pci}: PCIe x{link.width} at {link.speed:g} GT/s, it can x{link.max_width} at {link.max_speed:g} GT/s"
    attrs: dict[str, Scalar] = {
        "pci": link.pci,
        "width": link.width,
        "max_width": link.max_width,
        "speed": link.speed,
        "max_speed": link.max_speed,
    }
    return Sign("pcie.degraded", raw, "gpu" if link.gpu else "network", SOURCE, attrs=attrs)


def _link(device: Path) -> Link | None:
    vendor, kind = sysfs.number(device / "vendor"), sysfs.number(device / "class")
    kind = None if kind is None else kind >> 8
    gpu = vendor == NVIDIA and kind in _DISPLAY
    if not gpu and not (vendor == MELLANOX and kind in _NETWORK):
        return None
    if (device / "physfn").exists():  # a virtual function has no link of its own
        return None
    ends = list(_ends(device))
    width, speed = _width(device / "current_link_width"), _speed(device / "current_link_speed")
    if not ends or width is None or speed is None:
        return None
    driver = device / "driver"
    return Link(
        pci=device.name.rpartition(".")[0].lower(),
        gpu=gpu,
        driver=driver.resolve().name if driver.exists() else None,
        width=width,
        max_width=min(end[0] for end in ends),
        speed=speed,
        max_speed=min(end[1] for end in ends),
    )


def _ends(device: Path) -> Iterator[tuple[int, float]]:
    """What the card can do, and what the bridge above it can (the bus lists devices as links into their tree)."""
    for end in (device, device.resolve().parent):
        width, speed = _width(end / "max_link_width"), _speed(end / "max_link_speed")
        if width is not None and speed is not None:
            yield width, speed


def _width(path: Path) -> int | None:
    lanes = sysfs.number(path)
    return lanes if lanes in _WIDTHS else None


def _speed(path: Path) -> float | None:
    match = _SPEED.search(sysfs.text(path) or "")
    return float(match["gts"]) if match else None
