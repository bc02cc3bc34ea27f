"""What NVIDIA's management library said of the GPUs, as values, and the signs in two readings of it.

The library itself is asked in `worker_hooks.sensor.nvml`. Everything here was run on made-up readings, not on a GPU.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from worker_hooks.signs.counting import counted
from worker_hooks.signs.sign import Scalar, Sign

SOURCE = "nvml"
# The library's bits of why the clocks are low that are a fault of the machine; heat that the software handles and the
# power limit are its daily life.
THROTTLE: Mapping[int, str] = {0x08: "hw_slowdown", 0x40: "hw_thermal", 0x80: "hw_power_brake"}
RECOVERY: Mapping[int, str] = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain_p2p",
    4: "drain_reset",
    5: "recover_imex",
    6: "bus_reset",
    7: "reboot",
}
BUSY_PERCENT = 50


@dataclass(frozen=True)
class GpuReading:
    """One GPU. None: this GPU or driver does not tell it. `pci`: `0000:9b:00`. `unreadable`: the library knows the GPU
    and cannot talk to it (lost, needs a reset): its words. `trouble`: the library's own failure, which says nothing of
    the GPU; what it told all the same is here."""

    index: int
    uuid: str | None = None
    pci: str | None = None
    ecc_volatile: int | None = None
    ecc_aggregate: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: int | None = None
    throttle: int | None = None
    busy_percent: int | None = None
    unreadable: str | None = None
    trouble: str | None = None


@dataclass(frozen=True)
class GpuReadings:
    """`count`: how many GPUs the library counts, those that it cannot talk to included."""

    count: int
    gpus: tuple[GpuReading, ...] = field(default_factory=tuple)

    def by_uuid(self) -> dict[str, GpuReading]:
        return {gpu.uuid: gpu for gpu in self.gpus if gpu.uuid}

    def after(self, before: "GpuReadings | None") -> "GpuReadings":
        """To compare the next ones with: a count that could not be read now is the earlier one, so that what was added
        while it could not be read is seen."""
        known = before.by_uuid() if before else {}
        now = [_counted_on(known.pop(gpu.uuid, gpu) if gpu.uuid else gpu, gpu) for gpu in self.gpus]
        return replace(self, gpus=(*now, *known.values()))


def _counted_on(old: GpuReading, gpu: GpuReading) -> GpuReading:
    volatile = old.ecc_volatile if gpu.ecc_volatile is None else gpu.ecc_volatile
    aggregate = old.ecc_aggregate if gpu.ecc_aggregate is None else gpu.ecc_aggregate
    return replace(gpu, ecc_volatile=volatile, ecc_aggregate=aggregate)


def address(bus_id: str) -> str:
    """The library's `00000000:9B:00.0` as Xid lines have it: `0000:9b:00`."""
    domain, _, rest = bus_id.strip().lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest.partition('.')[0]}"


def gpu_signs(before: GpuReadings | None, now: GpuReadings, expected: int | None = None) -> list[Sign]:
    """`expected`: how many GPUs this host has; None unknown."""
    signs: list[Sign] = []
    if expected is not None and now.count < expected:
        raw = f"{now.count} GPUs of {expected}"
        signs.append(_sign("gpu.missing", raw, {"expected": expected, "found": now.count}))
    earlier = before.by_uuid() if before else {}
    for gpu in now.gpus:
        if gpu.unreadable:
            signs.append(_sign("gpu.unreadable", f"{_name(gpu)}: {gpu.unreadable}", _of(gpu, text=gpu.unreadable)))
            continue
        signs += _standing(gpu)
        old = earlier.get(gpu.uuid or "")
        if old is not None:
            signs += _changed(old, gpu)
    return signs


def _standing(gpu: GpuReading) -> Iterator[Sign]:
    if gpu.remap_failed:
        yield _sign("gpu.remap_failed", f"{_name(gpu)}: a row could not be remapped", _of(gpu))
    if gpu.remap_pending:
        yield _sign("gpu.remap_pending", f"{_name(gpu)}: a row remapping waits for a reset", _of(gpu))
    if gpu.recovery:
        action = RECOVERY.get(gpu.recovery, str(gpu.recovery))
        yield _sign("gpu.recovery_action", f"{_name(gpu)}: the driver asks for {action}", _of(gpu, action=action))


def _changed(old: GpuReading, gpu: GpuReading) -> Iterator[Sign]:
    volatile = _more(old.ecc_volatile, gpu.ecc_volatile)
    aggregate = _more(old.ecc_aggregate, gpu.ecc_aggregate)
    if volatile or aggregate:
        raw = f"{_name(gpu)}: uncorrected ECC errors rose by {volatile} (volatile), {aggregate} (aggregate)"
        yield _sign("gpu.ecc_uncorrected", raw, _of(gpu, volatile=volatile, aggregate=aggregate))
    both = (old.throttle or 0) & (gpu.throttle or 0)  # twice in a row: short ones are the hardware's own regulation
    reasons = ",".join(name for bit, name in THROTTLE.items() if both & bit)
    if reasons:
        yield _sign("gpu.throttled", f"{_name(gpu)}: clocks held down by {reasons}", _of(gpu, reasons=reasons))


def _more(before: int | None, now: int | None) -> int:
    return 0 if before is None or now is None else counted(before, now)


def _name(gpu: GpuReading) -> str:
    return f"GPU {gpu.index} {gpu.pci or '?'} {gpu.uuid or '?'}"


def _of(gpu: GpuReading, **more: Scalar) -> dict[str, Scalar]:
    known = {name: value for name, value in (("pci", gpu.pci), ("gpu_uuid", gpu.uuid)) if value}
    return {**known, **more}


def _sign(code: str, raw: str, attrs: Mapping[str, Scalar]) -> Sign:
    return Sign(code, raw, "gpu", SOURCE, attrs=attrs)
