"""How much a piece of evidence says here: its meaning, and the circumstances that the line itself tells."""

from collections.abc import Callable

from controller.decision.assess.view import View
from controller.decision.evidence import Evidence
from controller.decision.meanings import Knowledge

HARD, STRONG, WEAK, CASCADE, CLEARS, CONTEXT = "hard", "strong", "weak", "cascade", "clears", "context"
IB_FLUSHED = 5  # IBV_WC_WR_FLUSH_ERR: what was still queued when the connection broke
# Exceptions that tell of a process's or a peer's end, not of their own fault.
SECONDARY = frozenset(
    {"DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "ChildFailedError", "SignalException"}
    | {
        "KeyboardInterrupt",
        "SystemExit",
        "BrokenPipeError",
        "ConnectionResetError",
        "ConnectionRefusedError",
        "EOFError",
    }
    | {"ConnectionAbortedError", "ProcessExitedException", "ProcessRaisedException", "GeneratorExit"}
)
Circumstance = Callable[[Evidence, str], str]


def weight(view: View, item: Evidence) -> str:
    """One of `meanings.WEIGHTS`; what nobody knows the meaning of is context."""
    return weight_by(view.knowledge, item)


def weight_by(knowledge: Knowledge, item: Evidence) -> str:
    """The same where there is no view."""
    row = knowledge.of(item.code)
    if row is None:
        return CONTEXT
    special = _SPECIAL.get(item.code) or _SPECIAL.get(item.family)
    return special(item, row.weight) if special is not None else row.weight


def cascades(view: View) -> tuple[Evidence, ...]:
    """Consequences: they never name anybody."""
    return tuple(e for e in view.items if weight(view, e) == CASCADE)


def _graded(item: Evidence, base: str) -> str:
    """Fatal or not stands in the line for NVLink's Xids and for SXids, not in the number."""
    fatal = item.attrs.get("fatal")
    if fatal is False and base in (HARD, STRONG, WEAK):
        return CONTEXT
    told = item.family == "sxid" or 144 <= _number(item) <= 150
    return STRONG if told and fatal is None and base == HARD else base


def _recovery(item: Evidence, base: str) -> str:
    """What the driver itself asks for: nothing more, a reset, or a reboot."""
    asked = str(item.attrs.get("recovery", item.attrs.get("action", ""))).lower()
    if asked in ("none", "0", "0x0"):
        return CLEARS
    return HARD if "reboot" in asked and base in (STRONG, HARD) else base


def _completion(item: Evidence, base: str) -> str:
    return CASCADE if item.attrs.get("status") == IB_FLUSHED else base


def _exception(item: Evidence, base: str) -> str:
    text = str(item.attrs.get("text", ""))
    if item.attrs.get("type") in SECONDARY or "NCCL error" in text or "ncclRemoteError" in text:
        return CASCADE
    return base


def _exit(item: Evidence, base: str) -> str:
    return CASCADE if item.attrs.get("torn_down") is True or item.attrs.get("exit_code") == 0 else base


def _machine_check(item: Evidence, base: str) -> str:
    fatal = item.attrs.get("fatal")
    return CONTEXT if fatal is False else HARD if fatal is True and base == STRONG else base


def _missing(item: Evidence, base: str) -> str:
    expected, found = item.attrs.get("expected"), item.attrs.get("found")
    return CONTEXT if expected is not None and expected == found else base


def _number(item: Evidence) -> int:
    tail = item.code.split(".", 1)[-1]
    return int(tail) if tail.isdecimal() and len(tail) < 10 else -1


_SPECIAL: dict[str, Circumstance] = {
    "xid.154": _recovery,
    "gpu.recovery_action": _recovery,
    "xid": _graded,
    "sxid": _graded,
    "nccl.ib_completion": _completion,
    "python.exception": _exception,
    "process.exit": _exit,
    "torchrun.failure": _exit,
    "cpu.machine_check": _machine_check,
    "gpu.missing": _missing,
}
