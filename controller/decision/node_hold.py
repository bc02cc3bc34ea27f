"""The hold's table: our record of why a node is out of service (not Slurm's job hold).

`draining`: asked for, Slurm still runs jobs there. `drained`: Slurm shows DRAIN and nothing runs: only now may a node
be rebooted or repaired. `returned`: Slurm shows it in service, but by no word of a person that we can see (a reboot
cleared the drain, or it goes in and out): it counts as held until a check passes or a person says so.
`released` only by a person or a passed check; `retired`: the machine leaves the cluster.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from controller.decision.machine import Machine

NODE_HOLD = Machine(
    name="node hold",
    initial="draining",
    final=frozenset({"released", "retired"}),
    table={
        "draining": {"drained": "drained", "return": "returned", "release": "released", "retire": "retired"},
        "drained": {
            "test": "testing",
            "return": "returned",
            "release": "released",
            "retire": "retired",
            "jobs_returned": "draining",
        },
        "testing": {"test_failed": "drained", "release": "released", "retire": "retired"},
        "returned": {"out_again": "draining", "test": "testing", "release": "released", "retire": "retired"},
        "released": {},
        "retired": {},
    },
)

# A node that is drained so often in so short a time passes its checks when idle and fails under load.
STICKY_DRAINS = 3
STICKY_WITHIN_S = 86400.0


@dataclass(frozen=True)
class HeldNode:
    """What Slurm shows of a held node. `empty`: nothing runs or completes there. `rebooted`: since it was last seen
    out, so that nobody but the reboot need have cleared the drain."""

    out: bool
    down: bool
    empty: bool
    jobs: tuple[str, ...] = ()
    rebooted: bool = False


def sticky(drains: Iterable[float], now: float) -> bool:
    """`drains`: when the node was taken out, by anybody. A sticky hold is cleared by a person only."""
    return sum(1 for at in drains if 0 <= now - at <= STICKY_WITHIN_S) >= STICKY_DRAINS


def release_refusal(*, is_sticky: bool, by_person: bool) -> str | None:
    """Why this hold must not be released now, or None."""
    if is_sticky and not by_person:
        return f"{STICKY_DRAINS} drains in 24 hours: only a person clears this hold"
    return None


def follow_hold(state: str, node: HeldNode, *, adopted: bool, is_sticky: bool) -> tuple[str, str] | None:
    """(event, reason) that Slurm's view of the node asks for, or None."""
    if not node.out and not node.down:
        return None if state == "returned" else _back(node, adopted, is_sticky)
    if state == "returned":
        return "out_again", "Slurm shows it out of service again"
    if state == "draining" and node.empty:
        return "drained", "Slurm shows it out and empty"
    if state == "drained" and node.jobs:
        return "jobs_returned", f"jobs run on it: {', '.join(node.jobs)}"
    return None


def _back(node: HeldNode, adopted: bool, is_sticky: bool) -> tuple[str, str]:
    """In service again. Somebody else's drain is theirs to clear, also by a reboot."""
    refusal = release_refusal(is_sticky=is_sticky, by_person=False)
    if refusal is not None:
        return "return", f"Slurm shows the node in service again; {refusal}"
    if node.rebooted and not adopted:
        return "return", "a reboot brought the node back; it is not checked, and nobody has said that it is well"
    return "release", "Slurm shows the node in service again"
