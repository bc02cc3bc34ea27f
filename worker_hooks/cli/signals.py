"""`--signal=[{R|B}:]SIGNAL[@SECONDS]` of sbatch: who gets the warning before the time limit, which, and how early.

Pure. Slurm sends it between SECONDS and SECONDS + 60 before the end (its timers have that resolution), so a save that
needs `lead_s` is safe, and training loses up to a minute more than was asked for. Without `B:` every job step gets it
and the batch shell does not; with `B:` the batch shell alone, which has to trap it, forward it, and run srun in the
background: a shell runs its traps only while it waits in `wait`.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

EARLY_S = 60  # how much earlier than asked Slurm may send it
SLURMS_LEAD_S = 60  # where "@SECONDS" is left out
MOST_LEAD_S = 65535
MARGIN_S = 60
ENVIRONMENT = "RELUME_SIGNAL"
# Not USR1: some releases of NCCL took that one for themselves, and the warning vanished.
HEARD = "USR2"
DEFAULT = f"{HEARD}@120"
# What sbatch knows by name; anything else only by number.
NAMES = frozenset(
    {
        *("HUP", "INT", "QUIT", "ABRT", "KILL", "ALRM", "TERM", "USR1", "USR2", "URG"),
        *("CONT", "STOP", "TSTP", "TTIN", "TTOU", "XCPU"),
    }
)
CANNOT_BE_CAUGHT = frozenset({"KILL", "STOP"})

Receiver = Literal["steps", "batch"]
# The colon may be missing (tried): no signal's name begins with R or B. So may the seconds after "@", which is 0.
_FORM = re.compile(r"(?P<who>RB|BR|R|B)?:?(?:(?P<number>\d+)|(?P<name>[A-Z][A-Z0-9]*))(?P<lead>@\d*)?", re.I | re.A)

_SRUN = re.compile(rb"^[^#\n]*\bsrun\b(?:\\\n|[^#\n;|&])*?\s--signal[=\s]+(?P<signal>[^\s;|&]+)", re.MULTILINE)


class SignalOptionError(ValueError):
    """sbatch would refuse it; the text says what is wrong."""


@dataclass(frozen=True)
class SignalOption:
    """`signal`: the name without SIG, or the number as text where it has none. `lead_s`: seconds before the time limit,
    as asked. `to`: job steps, or the batch shell alone. `overlap`: the job may run into a reservation's start, because
    it can be signalled to leave."""

    signal: str
    lead_s: int
    to: Receiver = "steps"
    overlap: bool = False

    @property
    def earliest_s(self) -> int:
        """So long before the time limit it may come already: training is over from there on."""
        return self.lead_s + EARLY_S

    @property
    def needs_forwarding(self) -> bool:
        return self.to == "batch"

    @property
    def text(self) -> str:
        """As sbatch takes it."""
        who = ("R" if self.overlap else "") + ("B" if self.to == "batch" else "")
        return f"{who + ':' if who else ''}{self.signal}@{self.lead_s}"


def parse(text: str) -> SignalOption:
    """The value of --signal, `#SBATCH --signal` or SBATCH_SIGNAL. Raises SignalOptionError where sbatch refuses too;
    whoever passes the text on to sbatch lets sbatch say so."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise SignalOptionError(f"--signal={text}: expected [{{R|B}}:]SIGNAL[@SECONDS]")
    lead = int(found["lead"][1:] or 0) if found["lead"] else SLURMS_LEAD_S
    if lead > MOST_LEAD_S:
        raise SignalOptionError(f"--signal={text}: at most {MOST_LEAD_S} seconds")
    who = (found["who"] or "").upper()
    name = _of_number(int(found["number"])) if found["number"] else _of_name(found["name"].upper())
    if name is None:
        raise SignalOptionError(f"--signal={text}: no signal that sbatch knows")
    return SignalOption(name, lead, to="batch" if "B" in who else "steps", overlap="R" in who)


def wanted(environment: Mapping[str, str]) -> SignalOption:
    """What `relume sbatch` asks for where the user asked for nothing: RELUME_SIGNAL, else the default."""
    return parse(environment.get(ENVIRONMENT) or DEFAULT)


def warnings(option: SignalOption, *, script_traps: bool = False) -> list[str]:
    """What will not work as hoped, a sentence each. `script_traps`: the batch script has a trap for this signal."""
    found = []
    if option.signal == "USR1":
        found.append("USR1 is taken by some releases of NCCL, and the warning then never reaches the program: use USR2")
    if option.signal in CANNOT_BE_CAUGHT:
        found.append(f"{option.signal} cannot be caught: the program ends or stops without a last save")
    if option.needs_forwarding and not script_traps:
        found.append(
            f"B: sends {option.signal} to the batch shell alone: it has to trap it, pass it on and run srun in the "
            f"background with wait, or drop the B:"
        )
    if option.lead_s < EARLY_S:
        found.append(f"{option.lead_s} s before the end may be too late for a save; Slurm's own default is 60 s")
    return found


def too_late(option: SignalOption, *, step_s: float | None = None, save_s: float | None = None) -> str | None:
    """Why a save at the signal is not likely to be there in time, from what this job has shown before; None: it is, or
    nobody knows. The step that is under way has to end first, and whatever else a node does needs MARGIN_S."""
    if step_s is None or save_s is None:
        return None
    needed = math.ceil(step_s + save_s + MARGIN_S)
    if option.lead_s >= needed:
        return None
    longer = f"--signal={replace(option, lead_s=needed).text}" if needed <= MOST_LEAD_S else "more than sbatch takes"
    return (
        f"{option.signal} comes {option.lead_s} s before the end, or up to {EARLY_S} s earlier; a step "
        f"({step_s:.0f} s), a save ({save_s:.0f} s) and {MARGIN_S} s of margin need {needed} s: {longer} "
        "(saves go on as they are due)"
    )


def unheard(option: SignalOption) -> list[str]:
    """Of a signal that goes to the job steps, where no `Run` takes it."""
    if option.needs_forwarding or option.signal in (HEARD, "USR1", *CANNOT_BE_CAUGHT):
        return []
    return [f"a Run saves at {HEARD}; a program without a handler of its own ends at {option.signal}, without a save"]


def of_srun(script: bytes) -> list[str]:
    """A batch script whose srun asks for a signal: that option is for allocations, and this one is there already."""
    found = _SRUN.search(script)
    asked = found["signal"].decode(errors="replace") if found else ""
    return [f"srun --signal={asked} does nothing inside a job: give it to sbatch"] if found else []


def forwarding_lines(option: SignalOption, command: str) -> list[str]:
    """What a batch script needs around `command` (a shell command line of the user's own) with `B:`.

    The loop is needed: `wait` returns with 128 + the signal when the trap has run, while the command goes on."""
    return [
        f"warned=; trap 'warned=1; kill -{option.signal} \"$pid\" 2>/dev/null' {option.signal}",
        f"{command} & pid=$!",
        'while :; do wait "$pid"; code=$?; [ "$warned" ] || break; warned=; done',
        'exit "$code"',
    ]


def _of_name(name: str) -> str | None:
    plain = name.removeprefix("SIG")
    return plain if plain in NAMES else None


def _of_number(number: int) -> str | None:
    if number == 0:
        return None
    names = {int(each): each.name.removeprefix("SIG") for each in signal.Signals}
    return names[number] if names.get(number) in NAMES else str(number)
