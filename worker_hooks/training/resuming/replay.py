"""The losses after a resume against what this rank recorded itself: replayed steps one by one, then a forecast.

Exact (on the CPU): a replayed loss is equal to the bit or the run is another one.

Elsewhere the same step gives nearly the same loss, and how nearly is learned from the run's own noise. With d the
differences between neighbouring recorded losses, their robust spread is

    spread = 1.4826 * median(|d - median(d)|)

(the median absolute deviation, scaled to a standard deviation). A replayed loss lies in the band if it differs by at
most BAND * spread + FLOOR * |recorded|. The same batch with the same weights differs far less than neighbouring steps
do, so a quarter of the spread is wide enough for another order of summation and too narrow for another batch.

New steps, the first WATCHED after the resume: the forecast is the median of the last HISTORY losses, the band SPIKE *
spread of these losses around their median (Rousseeuw and Croux 1993 recommend this estimate against outliers). A loss
above it is a LOSS_SPIKE; it does not end the run, because a hard batch is none of ours to judge, but names what would
explain it: a loss scale, a learning rate or a data position that is not what was saved.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import pairwise

from worker_hooks.training.errors import VerificationFailed
from worker_hooks.training.resuming.verify import DEGRADED, FAIL, PASS, Check
from worker_hooks.training.state.tracked import Tracked

BAND = 0.25
FLOOR = 1e-3
HISTORY = 64
LEAST_HISTORY = 8
SPIKE = 10.0
WATCHED = 20
_SCALE = 1.4826


def spread(values: Iterable[float]) -> float:
    """Scaled median absolute deviation of the finite values, 0.0 of fewer than two."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return 0.0
    middle = statistics.median(finite)
    return _SCALE * statistics.median(abs(value - middle) for value in finite)


def noise(losses: list[float]) -> float:
    """Spread of the differences between neighbouring losses."""
    return spread([after - before for before, after in pairwise(losses)])


def suspects(tracked: Tracked, checks: Iterable[Check]) -> list[str]:
    """What would explain a loss that is not as it was: parts not shown to be equal, and parts nobody tracks."""
    found = [check.name for check in checks if check.outcome != PASS]
    kinds = {name.partition(".")[0] for name in (*tracked.others, *tracked.loaders)}
    return found + [f"{kind} (not tracked)" for kind in ("scaler", "scheduler", "loader") if kind not in kinds]


class Replay:
    """`recorded`: this rank's own losses of all attempts before, by step, as hex. `step`: where the resume began.

    `comparable`: False on another number of ranks, where each rank sees other samples.
    """

    def __init__(self, recorded: Mapping[int, str], step: int, *, exact: bool, comparable: bool = True) -> None:
        known = {at: float.fromhex(loss) for at, loss in sorted(recorded.items())}
        self._recorded = {at: loss for at, loss in known.items() if at > step} if comparable else {}
        self._first = min(self._recorded, default=step + 1)  # a script need not tell the loss of every update
        self._exact = exact
        history = [loss for loss in known.values() if math.isfinite(loss)][-HISTORY:]
        self._noise = noise(history)
        self._history = deque(history, maxlen=HISTORY)
        self._new = 0

    def loosen(self, *, comparable: bool) -> None:
        """The same ranks on another layout sum in another order: no claim to the bit, and none at all where this rank
        does not see the samples it saw."""
        self._exact = False
        if not comparable:
            self._recorded = {}

    def check(self, step: int, loss: float, suspects: Iterable[str] = ()) -> Check | None:
        """None where there is nothing to compare with. `suspects`: parts that the verification did not call equal."""
        recorded = self._recorded.pop(step, None)
        if recorded is not None:
            return self._replayed(step, recorded, loss)
        return self._forecast(loss, suspects)

    def _replayed(self, step: int, recorded: float, loss: float) -> Check:
        expected, actual = recorded.hex(), loss.hex()
        both_lost = not math.isfinite(recorded) and not math.isfinite(loss)
        if both_lost and step == self._first:  # R27: it will be so each time
            return Check(
                "loss", FAIL, expected, actual, "NOT_FINITE", "no number again, right after the same checkpoint"
            )
        if expected == actual:
            return Check("loss", PASS, expected, actual)
        if math.isfinite(loss) and not math.isfinite(recorded):  # what spoilt that attempt is over
            return Check("loss", DEGRADED, expected, actual, why="a number now, where the attempt before had none")
        if self._exact:
            return Check("loss", FAIL, expected, actual)
        band = BAND * self._noise + FLOOR * abs(recorded)
        if both_lost or abs(recorded - loss) <= band:
            return Check("loss", DEGRADED, expected, actual, why=f"within {band:.3g} of what was recorded")
        return Check("loss", FAIL, expected, actual, why=f"differs by more than {band:.3g}")

    def _forecast(self, loss: float, suspects: Iterable[str]) -> Check | None:
        if self._new >= WATCHED or len(self._history) < LEAST_HISTORY:
            return None
        self._new += 1
        middle = statistics.median(self._history)
        band = SPIKE * spread(self._history) + FLOOR * abs(middle)
        if math.isfinite(loss):
            self._history.append(loss)
        if loss <= middle + band:
            return None
        named = ", ".join(suspects) or "none of the checked parts: perhaps the data"
        why = f"{loss:.6g} where at most {middle + band:.6g} was to be expected; candidates: {named}"
        return Check("loss", DEGRADED, middle.hex(), loss.hex(), "LOSS_SPIKE", why)


def demand_replay(check: Check, step: int, rank: int) -> None:
    """Raises VerificationFailed."""
    if check.outcome == FAIL:
        raise VerificationFailed(
            f"relume: verification failed: rank {rank}'s loss of replayed step {step} is {check.actual}, recorded was "
            f"{check.expected}{f' ({check.why})' if check.why else ''}; not training on",
            (check.name,),
        )
