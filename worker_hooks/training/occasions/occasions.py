"""When a checkpoint is taken: every so many updates, or at a step that the ranks agree on because somebody asked.

Who asks: the page ("save now"), a stop request, the signal before a time limit or a preemption, and, with
`checkpoint_every="auto"`, the interval that the controller works out (600 s until it has). Handlers only set a flag.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch.distributed as dist

from worker_hooks.training.occasions.agreement import Agreement, AgreementThread, Plan, Wish
from worker_hooks.training.occasions.boards import OwnBoard, StoreBoard

AUTO = "auto"
FIRST_INTERVAL_S = 600.0
# Not USR1: some releases of NCCL took that one for themselves.
WARNING = signal.SIGUSR2


class Warned:
    """Whether the signal that announces the end has come. Forked loader workers inherit the handler and ignore it."""

    def __init__(self) -> None:
        self.count = 0
        self._owner = os.getpid()
        self._handler: Any = None

    def listen(self) -> None:
        """Only in the main thread, and only where nobody else handles the signal."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(WARNING) is signal.SIG_DFL:
            self._handler = self._note
            signal.signal(WARNING, self._handler)

    def leave(self) -> None:
        if self._handler is not None and signal.getsignal(WARNING) == self._handler:
            signal.signal(WARNING, signal.SIG_DFL)
        self._handler = None

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if os.getpid() == self._owner:
            self.count += 1


class Occasions:
    """`every`: updates, 0 for never, or AUTO. `local_every`: updates, 0 for never: every rank counts them for itself,
    so nobody has to agree. `control`: what the agent's control file says now. `told(kind, id)`, from any thread: a save
    was asked for."""

    def __init__(
        self,
        every: int | str,
        *,
        local_every: int = 0,
        rank: int,
        world_size: int,
        generation: int,
        completed: Callable[[], int],
        control: Callable[[], Mapping[str, Any]],
        told: Callable[[str, str], None] = lambda kind, what: None,
    ) -> None:
        if isinstance(every, str) and every != AUTO:
            raise ValueError(f"checkpoint_every={every!r}: a number of updates, or {AUTO!r}")
        self.warned = Warned()
        self._every = every
        self._local_every = local_every
        self._rank = rank
        self._world_size = world_size
        self._generation = generation
        self._completed = completed
        self._control = control
        self._told = told
        self._noticed: dict[str, Any] = {}
        self._saved_at = time.monotonic()
        self._asked: dict[str, Any] = {}
        self._agreement = Agreement(OwnBoard(), rank, world_size, completed)
        self._thread: AgreementThread | None = None

    def start(self) -> None:
        """Once the ranks are there: listens to the signal, and to the other ranks."""
        self.warned.listen()
        if self._thread is not None:
            return
        if self._world_size == 1:
            self._thread = AgreementThread(self._notice, 1)
            return
        store = dist.distributed_c10d._get_default_store()
        board = StoreBoard(store, f"relume-agreement-g{self._generation}")
        self._agreement = Agreement(board, self._rank, self._world_size, self._completed)
        self._thread = AgreementThread(self._look_and_tick, self._world_size)

    def close(self) -> None:
        self.warned.leave()
        if self._thread is not None:
            self._thread.close()

    def saved(self) -> None:
        """A save has begun."""
        self._saved_at = time.monotonic()

    def due(self, step: int, *, last: bool) -> Plan | None:
        """Whether to save after `step`, and whether training ends there. `last`: no update comes after it."""
        if self._world_size == 1:
            self._look()
            plan = self._agreement.alone(step)
        else:
            plan = self._agreement.due(step)
        if plan is not None:
            return plan
        regular = isinstance(self._every, int) and self._every > 0 and step % self._every == 0
        return Plan(0, step, "", stop=False) if regular or last else None

    def due_locally(self, step: int) -> bool:
        """Whether `step` is to be saved on the nodes."""
        return self._local_every > 0 and step % self._local_every == 0

    # --- who asks -------------------------------------------------------------------------------------------------

    def _look_and_tick(self) -> None:
        self._notice()
        self._look()
        self._agreement.tick()

    def _notice(self) -> None:
        """What was asked for is told at once: the step at whose end it could be saved may never end."""
        control = self._control()
        asked = {"stop": control.get("stop"), "asked": control.get("save"), "signal": self.warned.count}
        for kind, value in asked.items():
            if value and self._noticed.get(kind) != value:
                self._noticed[kind] = value
                self._told(kind, str(value))

    def _look(self) -> None:
        control = self._control()
        self._once("stop", control.get("stop"), lambda why: Wish(str(why), stop=True))
        self._once("save", control.get("save"), lambda _: Wish("asked for"))
        self._once("warned", self.warned.count, lambda _: Wish("the signal before the end"))
        if self._every == AUTO and self._rank == 0:
            interval = control.get("interval_s") or FIRST_INTERVAL_S
            if time.monotonic() - self._saved_at >= interval:
                self.saved()  # asked for once; the save itself sets the time again
                self._agreement.wish(Wish("the interval is over"))

    def _once(self, what: str, value: Any, wish: Callable[[Any], Wish]) -> None:
        if value and self._asked.get(what) != value:
            self._asked[what] = value
            self._notice()
            self._agreement.wish(wish(value))
