"""Xid and SXid: what NVIDIA's drivers write into the kernel log about a GPU or an NVSwitch.

Every spelling known: with and without `PCI:`, function and domain, MIG instances, process name and id absent, unknown,
quoted or with any characters; a lost GPU that is told without a number, also over several lines.
"""

import re
from typing import TypeVar

from worker_hooks.signs.reading import sign_of
from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.sign import Scalar, Sign

_K = TypeVar("_K")
_V = TypeVar("_V")

_PCI = r"[0-9a-fA-F]{1,8}(?::[0-9a-fA-F]{1,4}){1,2}(?:\.[0-9a-fA-F])?"
_XID = re.compile(
    rf"(?<![A-Za-z])Xid \((?:PCI:)?(?P<pci>{_PCI})(?P<mig>[^)]{{0,80}})\):? *(?P<number>\d{{1,6}})\b *,? *(?P<rest>.*)",
    re.S,
)
_MIG = re.compile(r"(?P<name>GPU-I|GPU-CI|GI|CI)\s*[: ]\s*(?P<number>\d{1,4})")
_PID = re.compile(r"pid=(?:'?<unknown>'?|'?(?P<pid>\d{1,10})'?)\s*,?\s*")
# A process's name may hold anything; the driver's words begin with one of these, or at least with a capital.
_NAME_ENDS = (
    re.compile(r"name=(?P<name>.{0,80}?), (?=Ch(?:annel|ID)* [0-9a-fA-Fx]{2,}|channel |Graphics |GPU|Timeout )"),
    re.compile(r"name=(?P<name>.{0,80}?), (?=[A-Z0-9(])"),
    re.compile(r"name=(?P<name>[^,]{0,80})(?:, |,?$)"),
)
_LOCATION = re.compile(r"\(?(GPC \d{1,3}(?:, *TPC \d{1,3})?(?:, *SM \d{1,3})?)\)?")
_LINK_EVENT = re.compile(r"(?P<unit>[A-Z][A-Z0-9_]+) (?P<fatal>Fatal|Non-?fatal)\b", re.I)
_LINK = re.compile(r"\b[Ll]ink:? (?P<link>-?\d{1,6})\b")
_RECOVERY = re.compile(r"GPU recovery action changed from .*? to \S+ \((?P<action>[^)]*)\)")
_RECOVERIES = (
    ("reboot", "reboot"),
    ("drain and reset", "drain_reset"),
    ("drain p2p", "drain_p2p"),
    ("reset", "reset"),
    ("none", "none"),
)
_UUID = re.compile(rf"NVRM: GPU at PCI:(?P<pci>{_PCI}): *(?P<uuid>(?:GPU|MIG)-[0-9a-fA-F-]{{8,64}})")
_GPU_NAMED = re.compile(rf"(?:The NVIDIA GPU|NVRM: GPU|GPU at PCI:?) ?(?P<pci>{_PCI})(?![0-9a-fA-F:])")
_LOST = "fallen off the bus"
_FATAL_UNITS = range(144, 151)
_NEAR_LINES = 400  # a number that far from the words is of another event
_MESSAGE_LINES = 10
_DEVICES = 64  # remembered


def pci_address(text: str) -> str:
    """`0000:9b:00` of any spelling: lower case, with the domain, without the function."""
    parts = text.lower().split(".", 1)[0].split(":")
    domain = parts[0].zfill(4)[-4:] if len(parts) == 3 and len(parts[0]) <= 4 else parts[0]
    if len(parts) == 2:  # bus and device only; old drivers write the bus with four digits
        return f"0000:{parts[0][-2:].zfill(2)}:{parts[1].zfill(2)}"
    if len(domain) == 8 and domain.startswith("0000"):  # nvidia-smi's spelling
        domain = domain[4:]
    return f"{domain}:{parts[1].zfill(2)}:{parts[2].zfill(2)}"


class XidReader:
    triggers: tuple[bytes, ...] = (b"Xid (", b"fallen off the bus", b"The NVIDIA GPU ", b"NVRM: GPU at PCI")

    def __init__(self) -> None:
        self._uuids: dict[str, str] = {}
        self._told: dict[tuple[str | None, str], int] = {}  # (node, GPU) with an Xid 79: line of it
        self._named: dict[str | None, tuple[str, int]] = {}  # the GPU that a message of several lines began with

    def read(self, line: Line) -> list[Sign]:
        text = line.raw
        if "Xid (" in text:
            match = _XID.search(text)
            return [self._numbered(line, match)] if match and "SXid (" not in text else []
        if "NVRM: GPU at PCI" in text and _LOST not in text:
            self._remember_uuid(text)
            return []
        named = _GPU_NAMED.search(text)
        if named:
            _keep(self._named, line.node, (pci_address(named["pci"]), line.number))
        if _LOST in text and ("NVRM" in text or "GPU has" in text or self._goes_on(line)):
            return self._lost(line)
        return []

    def close(self) -> list[Sign]:
        return []

    def _goes_on(self, line: Line) -> bool:
        """The last line of a message that named its GPU a few lines before: later lines may lack the driver's name."""
        named = self._named.get(line.node)
        return line.source == "kernel" and named is not None and line.number - named[1] <= _MESSAGE_LINES

    def _numbered(self, line: Line, match: re.Match[str]) -> Sign:
        number, pci = int(match["number"]), pci_address(match["pci"])
        if number == 79:
            _keep(self._told, (line.node, pci), line.number)
        pid, process, text = _process(match["rest"].strip())
        mig = ", ".join(f"{part['name']} {int(part['number'])}" for part in _MIG.finditer(match["mig"]))
        return sign_of(
            line,
            f"xid.{number}",
            {
                "number": number,
                "pci": pci,
                "pid": pid,
                "process": process,
                "text": text,
                "gpu_instance": mig,
                "gpu_uuid": self._uuids.get(pci),
                **_details(number, text),
            },
        )

    def _lost(self, line: Line) -> list[Sign]:
        """No number at all, or the words that the driver adds to Xid 79."""
        pci, seen = self._named.get(line.node, ("", 0))
        if line.number - seen > _NEAR_LINES:
            pci = ""
        told = self._told.get((line.node, pci))
        if told is not None and line.number - told <= _NEAR_LINES:
            return []
        text = line.text.removeprefix("NVRM: ").strip()
        uuid = self._uuids.get(pci)
        attrs: dict[str, Scalar | None] = {"number": 79, "pci": pci, "text": text, "gpu_uuid": uuid, "inferred": True}
        return [sign_of(line, "xid.79", attrs)]

    def _remember_uuid(self, text: str) -> None:
        match = _UUID.search(text)
        if match:
            _keep(self._uuids, pci_address(match["pci"]), match["uuid"])


def _keep(memory: dict[_K, _V], key: _K, value: _V) -> None:
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > _DEVICES:
        del memory[next(iter(memory))]


def _process(rest: str) -> tuple[int | None, str | None, str]:
    """Process id, its name, and the driver's words."""
    pid: int | None = None
    match = _PID.match(rest)
    if match:
        pid, rest = (int(match["pid"]) if match["pid"] else None), rest[match.end() :]
    if not rest.startswith("name="):
        return pid, None, rest
    for form in _NAME_ENDS:
        named = form.match(rest)
        if named:
            name = named["name"].strip()
            return pid, None if name.strip("'\"") in ("<unknown>", "") else name, rest[named.end() :].strip()
    return pid, None, rest


def _details(number: int, text: str) -> dict[str, Scalar | None]:
    """What the driver's words say, for the numbers where they decide."""
    if number in _FATAL_UNITS:
        event, link = _LINK_EVENT.search(text), _LINK.search(text)
        if event:
            fatal = event["fatal"].lower() == "fatal"
            return {"unit": event["unit"], "fatal": fatal, "link": int(link["link"]) if link else None}
        return {"link": int(link["link"]) if link else None}
    if number == 154:
        return {"recovery": _recovery(text)}
    where = _LOCATION.search(text)
    if where:
        return {"location": re.sub(r", *", ", ", where[1])}
    link = _LINK.search(text)
    return {"link": int(link["link"]) if link else None}


def _recovery(text: str) -> str:
    match = _RECOVERY.search(text)
    said = (match["action"] if match else text).lower()
    return next((word for words, word in _RECOVERIES if words in said), said[:80])


_SXID = re.compile(rf"SXid \((?:PCI:)?(?P<pci>{_PCI})[^)]{{0,40}}\):? *(?P<number>\d{{1,6}})\b *,? *(?P<rest>.*)", re.S)
_FATAL = re.compile(r"\b(?P<fatal>Fatal|Non-?fatal)\b", re.I)
_DETAIL = re.compile(r"(?:Data\b|Severity\b|\{)")


class XidInJobReader(XidReader):
    """For job logs: only the lines that say it by themselves."""

    triggers: tuple[bytes, ...] = (b"Xid (", b"fallen off the bus")


class SxidReader:
    """Data and severity lines that follow an event belong to it."""

    triggers: tuple[bytes, ...] = (b"SXid (",)

    def __init__(self) -> None:
        self._events: dict[tuple[str | None, str, int], int] = {}

    def read(self, line: Line) -> list[Sign]:
        match = _SXID.search(line.raw) if "SXid (" in line.raw else None
        if not match:
            return []
        number, pci, text = int(match["number"]), pci_address(match["pci"]), match["rest"].strip()
        event = (line.node, pci, number)
        near = line.number - self._events.get(event, -_NEAR_LINES - 1) <= _NEAR_LINES
        if _DETAIL.match(text) and near:
            return []
        _keep(self._events, event, line.number)
        fatal, link = _FATAL.search(text), _LINK.search(text)
        attrs: dict[str, Scalar | None] = {
            "number": number,
            "pci": pci,
            "fatal": fatal["fatal"].lower() == "fatal" if fatal else None,
            "link": int(link["link"]) if link else None,
            "text": text,
        }
        return [sign_of(line, f"sxid.{number}", attrs)]

    def close(self) -> list[Sign]:
        return []
