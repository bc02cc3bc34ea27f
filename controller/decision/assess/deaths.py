"""How processes ended, whoever tells it: torchrun's tables, srun, the agent, shells. One death for each process."""

from collections.abc import Iterable
from dataclasses import dataclass

from controller.decision.assess.view import View
from controller.decision.evidence import Evidence

CODES = ("torchrun.failure", "process.exit", "slurm.task_exit")
KILLED, ABORTED, TERMINATED, SEGMENT, BUS = 9, 6, 15, 11, 7


@dataclass(frozen=True)
class Death:
    """`signal`: also of an exit code of 128 and a signal."""

    item: Evidence
    signal: int | None
    exit_code: int | None

    @property
    def by_program(self) -> bool:
        """It ended by an error of its own, not by a signal."""
        return self.signal is None and self.exit_code not in (None, 0)


def deaths(view: View) -> list[Death]:
    found = [_death(item) for item in view.of(*CODES) if item.attrs.get("torn_down") is not True]
    return [death for death in found if death.signal is not None or death.exit_code not in (None, 0)]


def killed_by(found: Iterable[Death], *signals: int) -> list[Death]:
    return [death for death in found if death.signal in signals]


def of_past(items: Iterable[Evidence]) -> list[Death]:
    return [_death(item) for item in items if item.code in CODES]


def _death(item: Evidence) -> Death:
    signal, code = item.attrs.get("signal"), item.attrs.get("exit_code")
    number = signal if isinstance(signal, int) and not isinstance(signal, bool) and signal > 0 else None
    exit_code = code if isinstance(code, int) and not isinstance(code, bool) else None
    if number is None and exit_code is not None:
        if -65 < exit_code < 0:
            number = -exit_code
        elif 128 < exit_code < 193:
            number = exit_code - 128
    return Death(item, number, exit_code)
