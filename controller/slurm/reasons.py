"""What Slurm gives as the reason that a job waits, in both of its spellings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from controller.slurm.hostlist import expand
from controller.slurm.views import HoldKind

_HOLDS = {
    "jobhelduser": HoldKind.USER,
    "jobheldadmin": HoldKind.ADMIN,
    "launch_failed_requeued_held": HoldKind.LAUNCH_FAILED,
    "user_env_retrieval_failed_requeued_held": HoldKind.LAUNCH_FAILED,
    "launch_failure_limit_exceeded_requeued_held": HoldKind.REQUEUE_LIMIT,
    "jobholdmaxrequeue": HoldKind.REQUEUE_LIMIT,
    "job_requeued_in_held_state": HoldKind.REQUEUE_HOLD,
    "jobrequeuedinheldstate": HoldKind.REQUEUE_HOLD,
    "reservation_deleted": HoldKind.RESERVATION_DELETED,
    "reservationdeleted": HoldKind.RESERVATION_DELETED,
}
_LIST = r"(?:[^\s(),]+(?:,\s+(?=\S))?|,)*"
_NOT_AVAILABLE = re.compile(rf"ReqNodeNotAvail.*?UnavailableNodes:\s*\(?({_LIST})", re.IGNORECASE | re.DOTALL)
_NODES_DOWN = re.compile(r"nodes[ _]required[ _]for[ _]job[ _]are[ _]down", re.IGNORECASE)


def normalise(reason: str) -> str:
    """One spelling: without squeue's brackets, blanks as underscores. Case is kept for what Slurm writes in words."""
    text = reason.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return re.sub(r"\s+", "_", text.strip())


def hold_kind(reason: str) -> HoldKind | None:
    """The hold that `reason` stands for, or None when the job merely waits."""
    return _HOLDS.get(normalise(reason).lower())


@dataclass(frozen=True, slots=True)
class Blocked:
    """`blocked` is False for ordinary waiting, `if-required` when only a job that requires `nodes` is stuck."""

    blocked: Literal[False, "if-required", "unknown"]
    nodes: tuple[str, ...] = ()


def blocked_by(reason: str) -> Blocked:
    """What a pending reason says about nodes that are not there. An unreadable list blocks nobody: `unknown`."""
    if found := _NOT_AVAILABLE.search(reason):
        try:
            nodes = tuple(expand(found.group(1)))
        except ValueError:
            return Blocked("unknown")
        return Blocked("if-required", nodes) if nodes else Blocked(False)
    return Blocked("unknown") if _NODES_DOWN.search(reason) else Blocked(False)
