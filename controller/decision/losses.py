"""Losses that are not numbers, and losses that jump: evidence from the run's own series. Pure.

Theory. A loss is compared with a robust forecast: the median of the last finite ones and their typical distance from
it. One odd value is data; a jump that comes back by itself is a spike that healed, and no incident: going back to a
checkpoint would cost more than it. A loss that stays out of its band has not healed (yet). What is not a number is
counted by steps; numbers after it end the count. NaN accuses no hardware: that needs a second sign from elsewhere.

The state is small and plain, so that it is kept with the attempt and folded over the points as they come in.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

WINDOW = 48
LEARN_FROM = 5
DEVIATION = 1.4826
BAND = 8.0  # so many typical distances above the forecast are a jump ...
LEAST = 0.1  # ... and at least this share of it: a smooth curve has hardly any distance
CALM = 3  # so many values in the band again, and it has healed
KEPT_SPIKES = 4
LARGEST = 1e150  # beyond it sums overflow: as good as infinite


@dataclass(frozen=True)
class Spike:
    """`value`: the highest. `healed_step`: where the loss was back for good; None: it is not."""

    step: int
    value: float
    forecast: float
    healed_step: int | None = None

    @property
    def healed(self) -> bool:
        return self.healed_step is not None


@dataclass(frozen=True)
class LossState:
    """Of one series in one attempt. `bad_since`: the first step of the present row of values that are no numbers,
    `bad_steps` its length, `not_finite` how many there were in all. `recent`: the last values inside the band. `calm`:
    how many in a row since the open spike."""

    count: int = 0
    last_step: int | None = None
    last_finite_step: int | None = None
    not_finite: int = 0
    bad_since: int | None = None
    bad_steps: int = 0
    recent: tuple[float, ...] = ()
    spikes: tuple[Spike, ...] = ()
    calm: int = 0

    @property
    def open_spike(self) -> Spike | None:
        return self.spikes[-1] if self.spikes and not self.spikes[-1].healed else None


@dataclass(frozen=True)
class NotFinite:
    """The first step at which a rank's metric was no number."""

    rank: int
    name: str
    step: int


def state_to_json(state: LossState) -> dict[str, Any]:
    return asdict(state)


def state_from_json(data: Mapping[str, Any]) -> LossState:
    """Inverse of `state_to_json`; {} is the state before any point."""
    if not data:
        return LossState()
    spikes = tuple(Spike(**spike) for spike in data["spikes"])
    return LossState(**{**data, "recent": tuple(data["recent"]), "spikes": spikes})


def fold(state: LossState, points: Iterable[tuple[int, float]]) -> LossState:
    """Points by rising step; one that is not behind the last step is a repetition and is left out."""
    for step, value in points:
        if state.last_step is None or step > state.last_step:
            state = _one(replace(state, count=state.count + 1, last_step=step), step, value)
    return state


def _one(state: LossState, step: int, value: float) -> LossState:
    if not abs(value) <= LARGEST:  # NaN is not either
        since = step if state.bad_since is None else state.bad_since
        return replace(state, not_finite=state.not_finite + 1, bad_since=since, bad_steps=state.bad_steps + 1)
    state = replace(state, last_finite_step=step, bad_since=None, bad_steps=0)
    band = _band(state.recent)
    if band is not None and value > band[1]:
        return _jumped(state, step, value, band[0])
    return _calm(replace(state, recent=(*state.recent, value)[-WINDOW:]), step)


def _band(recent: tuple[float, ...]) -> tuple[float, float] | None:
    """The forecast and what is too far above it; None before anything was learned."""
    if len(recent) < LEARN_FROM:
        return None
    middle = median(recent)
    distance = DEVIATION * median(abs(value - middle) for value in recent)
    return middle, middle + max(BAND * distance, LEAST * abs(middle))


def _jumped(state: LossState, step: int, value: float, forecast: float) -> LossState:
    spike = state.open_spike
    if spike is None:
        return replace(state, spikes=(*state.spikes, Spike(step, value, forecast))[-KEPT_SPIKES:], calm=0)
    higher = replace(spike, value=max(spike.value, value))
    return replace(state, spikes=(*state.spikes[:-1], higher), calm=0)


def _calm(state: LossState, step: int) -> LossState:
    spike = state.open_spike
    if spike is None:
        return state
    if state.calm + 1 < CALM:
        return replace(state, calm=state.calm + 1)
    return replace(state, spikes=(*state.spikes[:-1], replace(spike, healed_step=step)), calm=0)
