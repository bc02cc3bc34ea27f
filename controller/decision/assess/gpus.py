"""Whose GPU a sign is about: on a shared node (MIG, MPS, several jobs) only what hit this job's GPUs counts."""

import re
from collections.abc import Iterable, Mapping, Sequence

from controller.decision.evidence import Evidence

# Signs about one device; whatever else is said on a node is about all of its jobs.
DEVICE_FAMILIES = frozenset({"xid", "gpu", "pcie"})

# As the kernel names a slice in front of an Xid: `GPU-I 5`, with its compute instance `GPU-I 5, GPU-CI 2`.
_INSTANCE = re.compile(r"\bG(?:PU-)?I[ :]*(?P<number>\d+)")


def split(
    items: Sequence[Evidence], held: Mapping[str, frozenset[str]]
) -> tuple[tuple[Evidence, ...], tuple[Evidence, ...]]:
    """-> (about this job, about GPUs that it does not hold). `held`: node to the UUIDs that the job holds there, none
    where that is unknown; what is not known to be another job's is this job's."""
    uuids = _uuid_by_pci(items)
    theirs = [_of_others(item, uuids, held) for item in items]
    mine = tuple(item for item, other in zip(items, theirs, strict=True) if not other)
    return mine, tuple(item for item, other in zip(items, theirs, strict=True) if other)


def pci_of(item: Evidence) -> str:
    """Domain, bus and device of the address, as short as the kernel writes it; "" where the line has none."""
    text = str(item.attrs.get("pci", "")).strip().lower().split(".", 1)[0]
    parts = text.split(":")
    if len(parts) == 3 and len(parts[0]) > 4:  # NVML writes eight digits of domain
        parts[0] = parts[0][-4:]
    return ":".join(parts)


def device_of(item: Evidence) -> str:
    """What names the device on its node: the address, else the UUID, else ""."""
    return pci_of(item) or str(item.attrs.get("gpu_uuid", ""))


def _uuid_by_pci(items: Iterable[Evidence]) -> dict[tuple[str | None, str], str]:
    """Pairs that some sign tells together."""
    return {
        (item.node, pci_of(item)): str(item.attrs["gpu_uuid"])
        for item in items
        if item.attrs.get("gpu_uuid") and pci_of(item)
    }


def _of_others(item: Evidence, uuids: Mapping[tuple[str | None, str], str], held: Mapping[str, frozenset[str]]) -> bool:
    mine = held.get(item.node) if item.node is not None else None
    if not mine or item.family not in DEVICE_FAMILIES:
        return False
    uuid = str(item.attrs.get("gpu_uuid") or uuids.get((item.node, pci_of(item)), ""))
    if not uuid:
        return False
    instance = item.attrs.get("gpu_instance")
    return not any(_same_device(uuid, instance, each) for each in mine)


def _same_device(uuid: str, instance: object, held: str) -> bool:
    """`held`: `GPU-...`, `MIG-...`, or a slice as older drivers spell it, `MIG-GPU-<uuid>/<GPU instance>/<compute>`."""
    name, _, rest = held.strip().casefold().partition("/")
    if name.removeprefix("mig-") != uuid.strip().casefold().removeprefix("mig-"):
        return False
    own, told = rest.split("/", 1)[0], _INSTANCE.search(str(instance or ""))
    return not own or told is None or own == str(int(told["number"]))
