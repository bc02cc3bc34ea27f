"""Agreeing on a future step at which every rank saves, without a collective in the training loop.

Theory. A request (a signal, "save now" on the page, a stop, an interval in seconds) reaches the ranks at different
steps. Rank 0 proposes a step far enough ahead; each rank says whether it has that step still before it; when all have,
rank 0 decides for it, else against it, and proposes a later one. A rank that gets to the proposed step before it knows
the decision waits for it: the decision is one value that one process writes once, so all ranks act on the same.

All of it goes through a key-value store (`Board`) on a thread of its own. The training thread only compares numbers,
and reads the store at a proposed step.
"""

import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from worker_hooks.training.occasions.boards import Board

LEAD_S = 3.0  # a proposed step lies at least so far ahead; doubled after each proposal that came too late
LEAST_LEAD = 1  # steps
MOST_LEAD_S = 120.0
TICK_S = 0.5
RANKS_PER_SECOND = 10_000  # ticks are spread so that the store sees no more questions a second
DECIDE_S = 60.0  # a rank that says nothing for so long makes rank 0 decide against the step
PATIENCE_S = 2.0 * DECIDE_S  # a rank at a proposed step waits no longer for the decision
WAIT_S = 0.01


@dataclass(frozen=True)
class Wish:
    """What somebody wants: a save, and the end of training after it if `stop`."""

    why: str
    stop: bool = False


@dataclass(frozen=True)
class Plan:
    """`number` counts the proposals of this attempt."""

    number: int
    step: int
    why: str
    stop: bool


class Agreement:
    """One rank's part in it. `completed` gives the number of updates that this rank has finished."""

    def __init__(
        self,
        board: Board,
        rank: int,
        world_size: int,
        completed: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[], None] = lambda: time.sleep(WAIT_S),
    ) -> None:
        self._wait = wait
        self._board = board
        self._rank = rank
        self._world_size = world_size
        self._completed = completed
        self._clock = clock
        self._armed: dict[int, Plan] = {}  # by step: a rank behind the others may still have one before it
        self._seen = 0
        self._wishes: list[Wish] = []
        self._lock = threading.Lock()
        self._proposer = _Proposer(board, world_size, clock) if rank == 0 else None

    # --- from any thread, also from a signal handler's -----------------------------------------------------------

    def wish(self, wish: Wish) -> None:
        """Ask for a save at the next step that all ranks can agree on. Waits for nothing."""
        self._wishes.append(wish)

    # --- the training thread ----------------------------------------------------------------------------------------

    def due(self, step: int) -> Plan | None:
        """The plan for this step, if all ranks carry it out now. Costs a comparison at any other step."""
        plan = self._armed.pop(step, None)
        return plan if plan is not None and self._decided(plan) else None

    def alone(self, step: int) -> Plan | None:
        """`due` of a run with one rank, which needs nobody's consent."""
        if not self._wishes:
            return None
        wishes, self._wishes = self._wishes, []
        self._seen += 1
        return Plan(self._seen, step, *_joined(wishes))

    def _decided(self, plan: Plan) -> bool:
        """A store that cannot be asked any more is no reason to end training, nor to wait for ever: the save is left
        out here, and without this rank's part it never counts."""
        until = self._clock() + PATIENCE_S
        try:
            while (word := self._board.read(_decision(plan.number))) is None:
                if self._clock() > until:
                    return False
                self._wait()
        except (OSError, RuntimeError):
            return False
        return word == "yes"

    # --- the agreement's own thread -----------------------------------------------------------------------------------

    def tick(self) -> None:
        """One round: hand wishes on, answer a proposal, and in rank 0 propose and decide."""
        with self._lock:
            self._tell_wishes()
            if self._proposer is not None:
                self._proposer.tick(self._completed())
            self._answer()
            if self._proposer is not None:
                self._proposer.decide()

    def _tell_wishes(self) -> None:
        while self._wishes:
            number = self._board.add("wishes", 1)
            self._board.write(f"wish/{number}", json.dumps(asdict(self._wishes[0])))
            self._wishes.pop(0)

    def _answer(self) -> None:
        word = self._board.read(f"plan/{self._seen + 1}")
        if word is None:
            return
        plan = Plan(**json.loads(word))
        # Armed first: whichever comes first, this look or the training thread's, one of them sees the other.
        self._armed[plan.step] = plan
        in_time = self._completed() < plan.step
        if not in_time:
            self._armed.pop(plan.step, None)
        self._board.add(_answers(plan.number, in_time), 1)
        self._seen = plan.number


class _Proposer:
    """Rank 0: one proposal at a time."""

    def __init__(self, board: Board, world_size: int, clock: Callable[[], float]) -> None:
        self._board = board
        self._world_size = world_size
        self._clock = clock
        self._taken = 0
        self._gap = False
        self._open: list[Wish] = []
        self._proposed: tuple[Plan, float] | None = None
        self._number = 0
        self._last_step = 0
        self._lead_s = LEAD_S
        self._pace = _Pace()

    def tick(self, completed: int) -> None:
        self._pace.look(completed, self._clock())
        self._read_wishes()
        if self._open and self._proposed is None:
            self._propose(completed)

    def _read_wishes(self) -> None:
        told = int(self._board.read("wishes") or 0)
        while self._taken < told:
            word = self._board.read(f"wish/{self._taken + 1}")
            if word is None and not self._gap:
                self._gap = True  # its rank is between the two writes, or died there: looked at once more
                return
            self._gap = False
            self._taken += 1
            if word is not None:
                self._open.append(Wish(**json.loads(word)))

    def _propose(self, completed: int) -> None:
        self._number += 1
        step = max(completed + self._pace.steps_in(self._lead_s), self._last_step + 1)
        plan = Plan(self._number, step, *_joined(self._open))
        self._last_step = step
        self._board.write(f"plan/{plan.number}", json.dumps(asdict(plan)))
        self._proposed = (plan, self._clock())

    def decide(self) -> None:
        if self._proposed is None:
            return
        plan, since = self._proposed
        yes, late = (int(self._board.read(_answers(plan.number, word)) or 0) for word in (True, False))
        if late or (yes < self._world_size and self._clock() - since > DECIDE_S):
            self._board.write(_decision(plan.number), "no")
            self._lead_s = min(2.0 * self._lead_s, MOST_LEAD_S)
        elif yes == self._world_size:
            self._board.write(_decision(plan.number), "yes")
            # A save still to come fulfils also what was asked for meanwhile; a stop only where the plan says so.
            self._open = [wish for wish in self._open if wish.stop and not plan.stop]
            self._lead_s = LEAD_S
        else:
            return
        self._proposed = None


class _Pace:
    """How many steps a stretch of time takes at most, by the fastest pace seen lately."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._per_s = 0.0

    def look(self, completed: int, now: float) -> None:
        if self._last is None:
            self._last = (completed, now)
            return
        steps, seconds = completed - self._last[0], now - self._last[1]
        if steps > 0 and seconds > 0.0:
            self._per_s = max(steps / seconds, 0.5 * self._per_s)
            self._last = (completed, now)

    def steps_in(self, seconds: float) -> int:
        return max(LEAST_LEAD, math.ceil(seconds * self._per_s))


def _joined(wishes: list[Wish]) -> tuple[str, bool]:
    return "; ".join(dict.fromkeys(wish.why for wish in wishes)), any(wish.stop for wish in wishes)


def _decision(number: int) -> str:
    return f"decided/{number}"


def _answers(number: int, in_time: bool) -> str:
    return f"{'yes' if in_time else 'late'}/{number}"


class AgreementThread:
    """Ticks until closed. What goes wrong with the store is kept in `error` and tried again: training goes on."""

    def __init__(self, tick: Callable[[], None], world_size: int) -> None:
        self.error: str | None = None
        self._tick = tick
        self._every_s = max(TICK_S, world_size / RANKS_PER_SECOND)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="relume-agreement", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2.0 * self._every_s)

    def _loop(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self._tick()
                self.error = None
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"
