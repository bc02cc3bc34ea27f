"""Expected silence: when nothing speaks and nothing is wrong.

A suspended job, a node that reboots, saves power or is being maintained says nothing for as long as it pleases. While
it lasts no timer runs, and when it ends the timers start anew from that moment (`AgentFact.counts_from`). A state is
not a timer: a node that Slurm calls DOWN has failed, unless what was begun on purpose explains that too.
"""

from collections.abc import Iterable

# Begun on purpose: Slurm may well call such a node DOWN until it is back. Spellings from 20.11 to 26.05.
NODE_AWAY = {
    "REBOOT_ISSUED": "is rebooting",
    "REBOOT": "is rebooting",
    "POWERING_DOWN": "is being powered down",
    "POWERED_DOWN": "is powered down",
    "POWER": "is powered down",
    "POWERING_UP": "is being powered up",
    "POWERING_ON": "is being powered up",
    "POWER_UP": "is being powered up",
    "MAINTENANCE": "is in maintenance",
    "MAINT": "is in maintenance",
}
# Asked for, and carried out when its jobs have ended: DOWN before that is a failure.
NODE_LEAVING = {
    "REBOOT_REQUESTED": "is to reboot",
    "POWER_DOWN": "is to be powered down",
    "POWER_DRAIN": "is to be powered down",
}
# Whose the reservation is matters: in its own reservation a job is expected to run and to speak.
RESERVED = frozenset({"RESERVED"})
NODE_FLAGS = frozenset(NODE_AWAY) | frozenset(NODE_LEAVING) | RESERVED

_BASES = {
    "SUSPENDED": "is suspended",
    "PREEMPTED": "is preempted",
    "PENDING": "waits in the queue",
    "CANCELLED": "is cancelled",
    "COMPLETED": "has ended",
}
_FLAGS = {
    "STOPPED": "is stopped by a signal",
    "CONFIGURING": "is being set up",
    "POWER_UP_NODE": "waits for its nodes to be powered up",
    "REQUEUED": "is being requeued",
    "REVOKED": "is revoked",
}


def of_node(flags: Iterable[str], *, reserved_for_others: bool) -> str | None:
    """Why this node need not speak, in words that follow its name; None when it should."""
    there = set(flags)
    for words in (NODE_AWAY, NODE_LEAVING):
        said = next((text for flag, text in words.items() if flag in there), None)
        if said is not None:
            return said
    return "is reserved for others" if reserved_for_others and there & RESERVED else None


def away(flags: Iterable[str]) -> bool:
    """What was begun on purpose explains even DOWN."""
    return not NODE_AWAY.keys().isdisjoint(flags)


def of_job(base: str, flags: Iterable[str]) -> str | None:
    """Why this job's processes need not speak, in words that follow `job N`; None when they should."""
    there = set(flags)
    return _BASES.get(base) or next((text for flag, text in _FLAGS.items() if flag in there), None)
