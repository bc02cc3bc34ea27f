"""Slurm's node and job states: a base state plus flags, in Slurm's own spelling.

A node's text is `BASE[symbols][+FLAG...]`; each symbol stands for a flag that newer versions also spell out
(22.05 `DOWN*+DRAIN` is 24.11 `DOWN+DRAIN+NOT_RESPONDING`), so symbols become flags and the same node gives the same
facts. sinfo prints one word for several facts ("drained"): these words are taken apart below.

A job's text is one word in which a flag *hides* the base (a requeued job that is still completing reads COMPLETING),
or, from 23.11 on, a list. Where the base cannot be known it is UNKNOWN.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

NODE_BASES = frozenset({"UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE"})
_NODE_SYMBOLS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
# sinfo's one-word summaries. "drained" is IDLE or DOWN with DRAIN: IDLE claims less, so nobody takes it for a failure.
_NODE_WORDS: dict[str, tuple[str, frozenset[str]]] = {
    "DRAINED": ("IDLE", frozenset({"DRAIN"})),
    "DRAINING": ("ALLOCATED", frozenset({"DRAIN"})),
    "FAILING": ("ALLOCATED", frozenset({"FAIL"})),
    "REBOOT": ("UNKNOWN", frozenset({"REBOOT_ISSUED"})),
    **{flag: ("IDLE", frozenset({flag})) for flag in ("RESERVED", "PLANNED", "BLOCKED")},
    **{
        flag: ("UNKNOWN", frozenset({flag}))
        for flag in (
            *("COMPLETING", "MAINTENANCE", "REBOOT_ISSUED", "REBOOT_REQUESTED", "REBOOT_CANCELED", "INVALID_REG"),
            *("FAIL", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"),
            *("CLOUD", "EXTERNAL", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "RESUME", "UNDRAIN"),
        )
    },
}
# sinfo's short codes (%t); "drain" is what it prints for a node that is drained, "drng" while jobs still run there.
_NODE_CODES = {
    "ALLOC": "ALLOCATED", "MIX": "MIXED", "UNK": "UNKNOWN", "FUTR": "FUTURE", "DRAIN": "DRAINED", "DRNG": "DRAINING",
    "COMP": "COMPLETING", "MAINT": "MAINTENANCE", "RESV": "RESERVED", "PLND": "PLANNED", "BOOT": "REBOOT",
    "FAILG": "FAILING", "INVAL": "INVALID_REG", "BLOCK": "BLOCKED", "EXT": "EXTERNAL", "CANC_R": "REBOOT_CANCELED",
    "CANCEL_REBOOT": "REBOOT_CANCELED", "POW_DN": "POWER_DOWN", "POW_UP": "POWER_UP", "POWRING_DN": "POWERING_DOWN",
    "POWERED_DN": "POWERED_DOWN", "RESM": "RESUME",
}  # fmt: skip
_FLAG_SPELLINGS = {
    "INVAL": "INVALID_REG", "MAINT": "MAINTENANCE", "RES": "RESERVED", "RESV": "RESERVED", "PLND": "PLANNED",
    "COMP": "COMPLETING", "DRAINED": "DRAIN", "DRAINING": "DRAIN", "REBOOT": "REBOOT_ISSUED",
}  # fmt: skip
_POWER = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWERING_ON", "POWER_UP"})
_REBOOT = frozenset({"REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT_CANCEL", "REBOOT_CANCELED"})
_UNUSABLE = _POWER | _REBOOT | {
    "DRAIN", "POWER_DRAIN", "NOT_RESPONDING", "MAINTENANCE", "RESERVED", "FAIL", "INVALID_REG", "BLOCKED"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node's state. `flags` is open: a flag this code has never heard of is kept, and changes no property."""

    base: str
    flags: frozenset[str]
    raw: str

    @property
    def down(self) -> bool:
        return self.base == "DOWN"

    @property
    def drain(self) -> bool:
        """Somebody took it out, whether or not jobs still run on it."""
        return "DRAIN" in self.flags

    @property
    def fail(self) -> bool:
        return "FAIL" in self.flags

    @property
    def responding(self) -> bool:
        return "NOT_RESPONDING" not in self.flags

    @property
    def completing(self) -> bool:
        return "COMPLETING" in self.flags

    @property
    def drained(self) -> bool:
        """Out, and nothing runs on it any more."""
        return self.drain and self.base in ("IDLE", "DOWN") and not self.completing

    @property
    def draining(self) -> bool:
        return self.drain and not self.drained

    @property
    def maintenance(self) -> bool:
        return "MAINTENANCE" in self.flags

    @property
    def reserved(self) -> bool:
        return "RESERVED" in self.flags

    @property
    def planned(self) -> bool:
        return "PLANNED" in self.flags

    @property
    def rebooting(self) -> bool:
        return bool(self.flags & _REBOOT)

    @property
    def powering(self) -> bool:
        """Power saving has it: silence is expected."""
        return bool(self.flags & _POWER)

    @property
    def usable(self) -> bool:
        """An ordinary job could be started on it as far as the node's state goes."""
        return self.base in ("IDLE", "MIXED", "ALLOCATED") and not self.flags & _UNUSABLE

    @property
    def label(self) -> str:
        """One lower-case word for people."""
        if self.drain:
            return "drained" if self.drained else "draining"
        if self.down:
            return "down"
        if self.maintenance:
            return "maintenance"
        if self.rebooting:
            return "rebooting"
        return self.base.lower()


def parse_node(text: str | Iterable[str]) -> NodeState:
    """A text as scontrol or sinfo print it, any case, or JSON's list; the base may stand anywhere.

    ValueError when it is empty; a base not known is UNKNOWN.
    """
    raw = text.strip() if isinstance(text, str) else "+".join(text)
    words = [_strip_symbols(word) for word in raw.upper().split("+") if word.strip()]
    if not words:
        raise ValueError(f"no node state in {text!r}")
    first = next((word for word in words if _NODE_CODES.get(word[0], word[0]) in NODE_BASES), words[0])
    words.remove(first)
    base, flags = _node_base(_NODE_CODES.get(first[0], first[0]))
    if raw.endswith("+") and base in ("ALLOCATED", "MIXED"):
        flags |= {"COMPLETING"}  # sinfo's mark for a node that some of its jobs are leaving
    flags |= first[1].union(*(symbols | {_FLAG_SPELLINGS.get(flag, flag)} for flag, symbols in words))
    return NodeState(base=base, flags=flags, raw=raw)


def _node_base(name: str) -> tuple[str, frozenset[str]]:
    return (name, frozenset()) if name in NODE_BASES else _NODE_WORDS.get(name, ("UNKNOWN", frozenset()))


def _strip_symbols(word: str) -> tuple[str, set[str]]:
    word = word.strip()
    name = word.rstrip("".join(_NODE_SYMBOLS))
    return name, {_NODE_SYMBOLS[symbol] for symbol in word[len(name) :]}


_TERMINAL_BLAME = {
    "COMPLETED": "none",
    "CANCELLED": "user",
    "FAILED": "user",
    "TIMEOUT": "none",
    "NODE_FAIL": "infra",
    "PREEMPTED": "none",
    "BOOT_FAIL": "infra",
    "DEADLINE": "user",
    "OUT_OF_MEMORY": "user",
}
_LIVE_BASES = frozenset({"PENDING", "RUNNING", "SUSPENDED"})
JOB_BASES = _LIVE_BASES | frozenset(_TERMINAL_BLAME)
# A flag printed alone, and the base it implies where there is only one.
_JOB_FLAGS = {
    "COMPLETING": "UNKNOWN",
    "STAGE_OUT": "UNKNOWN",
    "CONFIGURING": "RUNNING",
    "POWER_UP_NODE": "RUNNING",
    "RESIZING": "RUNNING",
    "SIGNALING": "RUNNING",
    "STOPPED": "RUNNING",
    "EXPEDITING": "PENDING",
    "REQUEUED": "PENDING",
    "REQUEUE_FED": "PENDING",
    "REQUEUE_HOLD": "PENDING",
    "SPECIAL_EXIT": "PENDING",
    "RESV_DEL_HOLD": "PENDING",
    "REVOKED": "UNKNOWN",
    "LAUNCH_FAILED": "UNKNOWN",
    "RECONFIG_FAIL": "UNKNOWN",
    "UPDATE_DB": "UNKNOWN",
}
# squeue's short codes (%t).
_JOB_CODES = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING", "DL": "DEADLINE",
    "F": "FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED", "R": "RUNNING",
    "RD": "RESV_DEL_HOLD", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "RQ": "REQUEUED", "RS": "RESIZING",
    "RV": "REVOKED", "S": "SUSPENDED", "SE": "SPECIAL_EXIT", "SI": "SIGNALING", "SO": "STAGE_OUT", "ST": "STOPPED",
    "TO": "TIMEOUT",
}  # fmt: skip
_HELD_FLAGS = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_CANCELLED_BY = re.compile(r"CANCELLED\s+BY\s+(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class JobState:
    """One job's state. `cancelled_by` is the uid that accounting names in "CANCELLED by 1001"."""

    base: str
    flags: frozenset[str]
    raw: str
    cancelled_by: int | None = None

    @property
    def pending(self) -> bool:
        return self.base == "PENDING"

    @property
    def running(self) -> bool:
        """Running in earnest: not still being set up, and not being torn down."""
        return self.base == "RUNNING" and not self.flags & {"COMPLETING", "CONFIGURING", "POWER_UP_NODE"}

    @property
    def suspended(self) -> bool:
        return self.base == "SUSPENDED" or "STOPPED" in self.flags

    @property
    def completing(self) -> bool:
        """Processes or epilogs of the last start may still be there; Slurm refuses or overwrites some changes now."""
        return "COMPLETING" in self.flags

    @property
    def held(self) -> bool:
        """Held by its state alone; `JobView.held` also knows the reasons that mean a hold."""
        return bool(self.flags & _HELD_FLAGS)

    @property
    def terminal(self) -> bool:
        """It will not run again by itself, and nothing of it is left to wait for."""
        return not self.completing and (self.base in _TERMINAL_BLAME or "REVOKED" in self.flags)

    @property
    def live(self) -> bool:
        return not self.terminal and (self.base != "UNKNOWN" or bool(self.flags))

    @property
    def blame(self) -> str:
        """Whose doing a terminal state is by its name alone: infra, user, none, other; "" while it is not terminal."""
        if not self.terminal:
            return ""
        return _TERMINAL_BLAME.get(self.base, "other")


def parse_job(text: str | Iterable[str]) -> JobState:
    """A text as squeue, scontrol or sacct print it (extra words, a "+" for a cut-off word, "BASE+FLAG"), or JSON's
    list.

    ValueError when it is empty. A word not known gives base UNKNOWN with the text kept in `raw`.
    """
    if not isinstance(text, str):
        words = [state.strip().upper() for state in text if state.strip()]
        if not words:
            raise ValueError("no job state in an empty list")
        return _job_state(words, "+".join(words), None)
    word = text.strip().upper()
    if not word:
        raise ValueError("no job state in an empty text")
    by = _CANCELLED_BY.match(word)
    return _job_state(_job_words(word.split()[0]), text.strip(), int(by.group(1)) if by else None)


def _job_words(word: str) -> list[str]:
    if word.endswith("+"):
        stem = word[:-1]
        whole = [name for name in sorted(JOB_BASES | _JOB_FLAGS.keys()) if name.startswith(stem)]
        return whole if len(whole) == 1 else [stem]
    return [_JOB_CODES.get(part, part) for part in word.split("+")]


def _job_state(words: list[str], raw: str, by: int | None) -> JobState:
    bases = [word for word in words if word in JOB_BASES]
    known = {word for word in words if word in _JOB_FLAGS}
    # A word never heard of is a flag beside what is known; alone it may be anything, a base too.
    flags = frozenset(word for word in words if word not in JOB_BASES) if bases or known else frozenset()
    implied = {_JOB_FLAGS[flag] for flag in known} - {"UNKNOWN"}
    # A flag that hides the base implies one only when no other flag disagrees.
    base = bases[0] if bases else implied.pop() if len(implied) == 1 and "COMPLETING" not in flags else "UNKNOWN"
    return JobState(base=base, flags=flags, raw=raw, cancelled_by=by)
