"""What the agent learns of its ranks' pace by looking at their slots with every heartbeat.

A look costs a few comparisons. Between two looks a rank may make many steps: their mean counts as that many. A look
that comes late says that this agent was stopped too (suspended, a host out of breath), so the time before it is no
pace of anybody's and is not learned.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from worker_hooks.protocol.pace import Pace, PhasePace
from worker_hooks.protocol.slots import Slot

LATE_LOOK_S = 20.0  # heartbeats come once a second, after failures within 5 s of each other
BINS_PER_OCTAVE = 4
FORGET_AT = 4096.0  # looks: beyond it what was seen until then weighs half as much
FORGOTTEN = 0.125
RECENT_LOOKS = 8
STEPPING = "training"
TIMED_PHASES = ("starting", "loading", "warming_up", "saving", "evaluation")


@dataclass
class Sketch:
    """Durations, in a bounded number of logarithmic bins. A bin keeps its weight and its mean; one odd value moves no
    median, and what was long ago is forgotten by halves. Each look weighs the same, however many steps it saw, or a
    quick rank would forget its longest step within seconds."""

    bins: dict[int, tuple[float, float]] = field(default_factory=dict)
    count: int = 0

    def add(self, seconds: float, times: int = 1) -> None:
        place = math.floor(BINS_PER_OCTAVE * math.log2(max(seconds, 1e-3)))
        weight, mean = self.bins.get(place, (0.0, 0.0))
        self.bins[place] = (weight + 1.0, mean + (seconds - mean) / (weight + 1.0))
        self.count += times
        if sum(weight for weight, _ in self.bins.values()) > FORGET_AT:
            halved = {key: (weight / 2, mean) for key, (weight, mean) in self.bins.items()}
            self.bins = {key: (weight, mean) for key, (weight, mean) in halved.items() if weight > FORGOTTEN}

    @property
    def median(self) -> float | None:
        half, passed = sum(weight for weight, _ in self.bins.values()) / 2, 0.0
        for place in sorted(self.bins):
            weight, mean = self.bins[place]
            passed += weight
            if passed >= half:
                return mean
        return None

    @property
    def longest(self) -> float | None:
        return self.bins[max(self.bins)][1] if self.bins else None


@dataclass
class RankPace:
    """One process of a rank."""

    pid: int
    steps: Sketch = field(default_factory=Sketch)
    phases: dict[str, Sketch] = field(default_factory=dict)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_LOOKS))
    first_step_s: float | None = None
    _slot: Slot | None = None
    _looked_ns: int = 0
    _phase_ns: int = 0
    _whole: bool = True  # the present phase was watched from its beginning

    def look(self, slot: Slot, now_ns: int) -> None:
        before, late = self._slot, (now_ns - self._looked_ns) / 1e9 > LATE_LOOK_S
        self._slot, self._looked_ns = slot, now_ns
        if before is None:
            self._phase_ns, self._whole = slot.progress_ns, True
            return
        if slot.phase != before.phase:
            self._left(before.phase, (slot.progress_ns - self._phase_ns) / 1e9, learn=self._whole and not late)
            self._phase_ns, self._whole = slot.progress_ns, True
        elif late:
            self._whole = False
        elif slot.phase == STEPPING and slot.step > before.step:
            self._stepped(before, slot)

    def _left(self, phase: str, seconds: float, *, learn: bool) -> None:
        if learn and phase in TIMED_PHASES:
            self.phases.setdefault(phase, Sketch()).add(seconds)

    def _stepped(self, before: Slot, slot: Slot) -> None:
        made = slot.step - before.step
        seconds = (slot.progress_ns - before.progress_ns) / 1e9 / made
        if self.first_step_s is None and before.step == before.start_step:
            self.first_step_s = seconds
            return
        self.steps.add(seconds, made)
        self.recent.append(seconds)

    def told(self, now_ns: int) -> Pace | None:
        """None before the rank wrote its slot."""
        if self._slot is None:
            return None
        return Pace(
            steps=self.steps.count,
            step_median_s=self.steps.median,
            step_longest_s=self.steps.longest,
            step_recent_s=median(self.recent) if self.recent else None,
            first_step_s=self.first_step_s,
            phase_age_s=max(0.0, (now_ns - self._phase_ns) / 1e9),
            phases={
                name: PhasePace(sketch.count, sketch.median or 0.0, sketch.longest or 0.0)
                for name, sketch in self.phases.items()
            },
        )


@dataclass
class PaceBook:
    """All ranks of this node, by their local rank. One thread looks."""

    ranks: dict[int, RankPace] = field(default_factory=dict)

    def look(self, slots: Sequence[Slot | None], now_ns: int) -> None:
        for local_rank, slot in enumerate(slots):
            if slot is None:
                continue
            known = self.ranks.get(local_rank)
            if known is None or known.pid != slot.pid:
                known = self.ranks[local_rank] = RankPace(slot.pid)
            known.look(slot, now_ns)

    def told(self, local_rank: int, now_ns: int) -> Pace | None:
        known = self.ranks.get(local_rank)
        return known.told(now_ns) if known is not None else None
