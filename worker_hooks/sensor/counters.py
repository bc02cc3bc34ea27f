"""The readers of counters, with what each remembers of earlier rounds: signs, or None for no such hardware."""

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from worker_hooks.protocol.sense import Gpu
from worker_hooks.sensor.nvml import Nvml
from worker_hooks.sensor.rounds import Partly
from worker_hooks.signs import sysfs
from worker_hooks.signs.infiniband import PortKey, Ports, port_signs, read_ports
from worker_hooks.signs.link import Interface, carrier_signs, read_interfaces, roce_interfaces
from worker_hooks.signs.memory import memory_signs, read_memory
from worker_hooks.signs.nvml import BUSY_PERCENT, GpuReadings, gpu_signs
from worker_hooks.signs.pcie import Link, link_signs, nvidia_gpus, read_links
from worker_hooks.signs.sign import Sign


class Gpus:
    """What the readers share: the UUIDs by PCI address, remembered when the GPU is gone, and which GPUs work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uuids: dict[str, str] = {}
        self._busy: frozenset[str] = frozenset()

    def learn(self, uuids: Mapping[str, str], busy: Iterable[str] = ()) -> None:
        with self._lock:
            self._uuids.update(uuids)
            self._busy = frozenset(busy)

    def uuid(self, pci: str) -> str | None:
        with self._lock:
            return self._uuids.get(pci)

    @property
    def busy(self) -> frozenset[str]:
        with self._lock:
            return self._busy

    @property
    def known(self) -> tuple[Gpu, ...]:
        with self._lock:
            return tuple(Gpu(uuid, pci) for pci, uuid in sorted(self._uuids.items()))


def driver_uuids(root: Path) -> dict[str, str]:
    """From the driver's files, which need no library. A driver in trouble prints question marks for a UUID."""
    found = {}
    for folder in sysfs.folders(root / "proc/driver/nvidia/gpus"):
        for line in (sysfs.text(folder / "information") or "").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "GPU UUID" and "?" not in value:
                found[folder.name.rpartition(".")[0].lower()] = value.strip()
    return found


class InfinibandReader:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._before: Ports | None = None
        self._seen: set[PortKey] = set()

    def __call__(self, now: float) -> list[Sign] | None:
        ports = read_ports(self._root, now)
        if ports is None and not self._seen:
            return None
        ports = ports or Ports(now, {})
        signs = port_signs(self._before, ports, self._seen)
        self._seen |= {key for key, port in ports.ports.items() if port.active}
        self._before = ports
        return signs


class PcieReader:
    def __init__(self, root: Path, gpus: Gpus) -> None:
        self._root = root
        self._gpus = gpus
        self._before: dict[str, Link] | None = None
        self._busy: frozenset[str] = frozenset()

    def __call__(self, now: float) -> list[Sign] | None:
        links = read_links(self._root)
        if not links:
            return None
        busy = self._gpus.busy
        signs = link_signs(self._before, links, busy & self._busy)
        self._before, self._busy = links, busy
        return signs


class MemoryReader:
    def __init__(self, root: Path) -> None:
        self._root = root

    def __call__(self, now: float) -> list[Sign] | None:
        memory = read_memory(self._root)
        return None if memory is None else memory_signs(memory)


class LinkReader:
    """The named interfaces must have a carrier; those under RoCE ports once they had one."""

    def __init__(self, root: Path, names: Iterable[str]) -> None:
        self._root = root
        self._named = tuple(names)
        self._before: dict[str, Interface] | None = None
        self._seen: set[str] = set()

    def __call__(self, now: float) -> list[Sign] | None:
        names = {*self._named, *roce_interfaces(self._root), *self._seen}
        if not names:
            return None
        interfaces = read_interfaces(self._root, sorted(names))
        missing = [n for n in self._named if not interfaces[n].present and n not in self._seen]
        if missing:
            raise LookupError(f"{missing[0]}: no such interface")
        signs = carrier_signs(self._before, interfaces, {*self._named, *self._seen})
        self._seen |= {name for name, interface in interfaces.items() if interface.carrier}
        self._before = interfaces
        return signs


class NvmlReader:
    """`told`: how many GPUs the site says there are; else those that the driver has had."""

    def __init__(self, root: Path, gpus: Gpus, nvml: Nvml, told: int | None) -> None:
        self._root = root
        self._gpus = gpus
        self._nvml = nvml
        self._told = told
        self._most = 0
        self._before: GpuReadings | None = None

    def __call__(self, now: float) -> list[Sign] | None:
        uuids = driver_uuids(self._root)
        self._gpus.learn(uuids)
        readings = self._nvml.read()
        if readings is None:
            return None
        named = {gpu.pci: gpu.uuid for gpu in readings.gpus if gpu.pci and gpu.uuid}
        busy = [gpu.pci for gpu in readings.gpus if gpu.pci and (gpu.busy_percent or 0) >= BUSY_PERCENT]
        self._gpus.learn({**uuids, **named}, busy)
        bound = len(nvidia_gpus(read_links(self._root) or {}))
        self._most = max(self._most, readings.count, bound)
        signs = gpu_signs(self._before, readings, self._told if self._told is not None else self._most)
        self._before = readings.after(self._before)
        trouble = [f"GPU {gpu.index}: {gpu.trouble}" for gpu in readings.gpus if gpu.trouble]
        if trouble:
            raise Partly("; ".join(trouble), signs)
        return signs
