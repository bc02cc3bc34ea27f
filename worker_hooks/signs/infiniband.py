"""InfiniBand and RoCE ports from `/sys/class/infiniband`: state, rate, and counters as rates between two readings.

Only what this end of the cable sees of its own link makes a sign. Retransmissions, time-outs and discards
(`local_ack_timeout_err`, `packet_seq_err`, `rnr_nak_retry_err`, `port_xmit_wait` ...) also rise on healthy hosts whose
peer has died or whose switch is full, and `port_rcv_remote_physical_errors` are packets that another link has damaged:
they stay rates. Counters of the InfiniBand standard stop at their highest number; such a one counts nothing any more.

Run on the recorded tree of one host with eight NDR ports and a RoCE bond; never on failing hardware.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from worker_hooks.signs import sysfs
from worker_hooks.signs.counting import counted, per_second
from worker_hooks.signs.sign import Scalar, Sign

SOURCE = "infiniband"
ACTIVE = "ACTIVE"
LINK_DOWNED = "link_downed"
# Errors a second of a port's own link from which on they are worth saying. A good NDR link has a handful an hour.
ERRORS_PER_S: Mapping[str, float] = {
    "symbol_error": 10.0,
    "port_rcv_errors": 10.0,
    "link_error_recovery": 0.1,
    "local_link_integrity_errors": 0.1,
    "excessive_buffer_overrun_errors": 0.1,
    "rx_icrc_encapsulated": 1.0,
}
LEAST_PEERS = 2  # that agree on a rate, before another port can be called slow
_NOT_COUNTERS = frozenset({"lifespan"})
_RATE = re.compile(r"(?P<gbps>\d+(?:\.\d+)?)\s*Gb/sec")

PortKey = tuple[str, int]


@dataclass(frozen=True)
class Port:
    """`state`, `phys_state`: the kernel's words without their number, in upper case (`ACTIVE`, `LINKUP`); "" unknown.
    `rate_gbps`: None unknown."""

    device: str
    number: int
    hca: str
    link_layer: str
    state: str
    phys_state: str
    rate_gbps: float | None
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> PortKey:
        return (self.device, self.number)

    @property
    def active(self) -> bool:
        return self.state == ACTIVE

    @property
    def roce(self) -> bool:
        return self.link_layer.lower() == "ethernet"


@dataclass(frozen=True)
class Ports:
    """All ports of a host at one moment; `at` counts seconds on any steady clock."""

    at: float
    ports: Mapping[PortKey, Port]


def read_ports(root: Path, at: float) -> Ports | None:
    """None: this host has no InfiniBand or RoCE device."""
    found = [port for device in sysfs.folders(root / "sys/class/infiniband") for port in _ports_of(device)]
    return Ports(at, {port.key: port for port in found}) if found else None


def rates(before: Port, now: Port, seconds: float) -> dict[str, float]:
    """Every counter that both readings have, as its rate a second."""
    return {
        name: per_second(before.counters[name], value, seconds)
        for name, value in now.counters.items()
        if name in before.counters
    }


def port_signs(before: Ports | None, now: Ports, seen_active: Iterable[PortKey] = ()) -> list[Sign]:
    """What the ports show. `seen_active`: ports that were up at any earlier reading; one that never was is unused."""
    up = set(seen_active)
    signs = [sign for key in sorted(up) if (sign := _down(key, now.ports.get(key)))]
    signs += _slow(now.ports.values())
    for key, port in now.ports.items():
        old = before.ports.get(key) if before else None
        if old is not None and before is not None:
            signs += _counted(old, port, now.at - before.at)
    return signs


def _down(key: PortKey, port: Port | None) -> Sign | None:
    if port is not None and (port.active or not port.state):
        return None
    state = "gone" if port is None else f"{port.state}, {port.phys_state}".lower()
    device, number = key
    attrs: dict[str, Scalar] = {"device": device, "port": number, "state": state}
    return _sign("ib.link_down", f"{device} port {number}: was active, is {state}", attrs)


def _slow(ports: Iterable[Port]) -> list[Sign]:
    """A port slower than the most of its equals: same card, same link layer, at this host."""
    equals: dict[tuple[str, str], list[Port]] = {}
    for port in ports:
        if port.active and port.rate_gbps:
            equals.setdefault((port.hca, port.link_layer), []).append(port)
    return [_slow_sign(port, rate) for group in equals.values() for port, rate in _behind(group)]


def _behind(group: list[Port]) -> Iterator[tuple[Port, float]]:
    ((rate, votes),) = Counter(port.rate_gbps or 0.0 for port in group).most_common(1)
    if votes < LEAST_PEERS or votes * 2 <= len(group):
        return
    for port in group:
        if port.rate_gbps is not None and port.rate_gbps < rate:
            yield port, rate


def _slow_sign(port: Port, expected: float) -> Sign:
    rate = port.rate_gbps or 0.0
    raw = f"{port.device} port {port.number}: {rate:g} Gb/s, its peers have {expected:g} Gb/s"
    return _sign("ib.slow", raw, {**_place(port), "rate_gbps": rate, "expected_gbps": expected})


def _counted(old: Port, port: Port, seconds: float) -> Iterator[Sign]:
    if LINK_DOWNED in old.counters and LINK_DOWNED in port.counters:
        times = counted(old.counters[LINK_DOWNED], port.counters[LINK_DOWNED])
        if times:
            raw = f"{port.device} port {port.number}: link_downed rose by {times} in {seconds:.1f} s"
            yield _sign("ib.link_downed", raw, {**_place(port), "count": times})
    for name, rate in rates(old, port, seconds).items():
        if rate >= ERRORS_PER_S.get(name, float("inf")):
            raw = f"{port.device} port {port.number}: {name} {rate:.1f} a second over {seconds:.1f} s"
            yield _sign("ib.errors", raw, {**_place(port), "counter": name, "per_s": round(rate, 3)})


def _place(port: Port) -> dict[str, Scalar]:
    return {"device": port.device, "port": port.number}


def _sign(code: str, raw: str, attrs: Mapping[str, Scalar]) -> Sign:
    return Sign(code, raw, "network", SOURCE, attrs=attrs)


def _ports_of(device: Path) -> Iterator[Port]:
    for folder in sysfs.folders(device / "ports"):
        if folder.name.isdigit():
            yield _port(device, folder)


def _port(device: Path, folder: Path) -> Port:
    rate = _RATE.search(sysfs.text(folder / "rate") or "")
    return Port(
        device=device.name,
        number=int(folder.name),
        hca=sysfs.text(device / "hca_type") or "",
        link_layer=sysfs.text(folder / "link_layer") or "",
        state=_word(sysfs.text(folder / "state")),
        phys_state=_word(sysfs.text(folder / "phys_state")),
        rate_gbps=float(rate["gbps"]) if rate else None,
        counters={**_counters(folder / "counters"), **_counters(folder / "hw_counters")},
    )


def _word(content: str | None) -> str:
    """`4: ACTIVE` is ACTIVE."""
    return (content or "").rpartition(":")[2].strip().upper()


def _counters(folder: Path) -> dict[str, int]:
    read = {file.name: sysfs.number(file) for file in sysfs.folders(folder) if file.name not in _NOT_COUNTERS}
    return {name: value for name, value in read.items() if value is not None}
