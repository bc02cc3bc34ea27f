"""Where stuck ranks stand, when the controller asks: their Python stack by py-spy, and what /proc says of them.

py-spy is asked where it is installed (extra `stacks`) and may look. A kernel with Yama's `ptrace_scope` 1 lets only
ancestors look, so each rank names its agent as one that may (`ranks`); not tried on such a kernel. /proc needs no more
than the same owner, and is strong where it counts: uninterruptible sleep is storage or a driver. No signal is ever sent
to a rank: one whose default is to kill would kill a script that does not expect it.

On a thread of its own: reading a process that hangs in the kernel may hang too. Then nothing is told.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from worker_hooks.agent.proc_view import Process, Processes
from worker_hooks.agent.py_spy import SPY_LIMIT_S, Spy, SpyAnswer
from worker_hooks.agent.state import AgentState
from worker_hooks.signs.sign import Scalar, Sign
from worker_hooks.signs.stack import Frame, python_stack, stack_sign

MOST_RANKS = 8  # of one request


class StackReader:
    """`give` gets one sign for each rank that could be looked at; `say` writes to the job's log. `proc`: where /proc
    is."""

    def __init__(
        self,
        state: AgentState,
        give: Callable[[Sign], None],
        say: Callable[[str], None],
        environ: Mapping[str, str],
        proc: Path = Path("/proc"),
        limit_s: float = SPY_LIMIT_S,
    ) -> None:
        self._state = state
        self._give = give
        self._say = say
        self._spy = Spy(environ, limit_s)
        self._proc = Processes(proc)
        self._asked: set[str] = set()
        self._said: set[str] = set()
        self._turn = threading.Lock()

    def ask(self, asked: str, ranks: Sequence[int]) -> None:
        """Looks at these ranks, as far as they are this agent's; once for each `asked`. Never waits."""
        if asked in self._asked:
            return
        self._asked.add(asked)
        looking = threading.Thread(target=self._look, args=(asked, ranks), name="relume-stacks", daemon=True)
        looking.start()

    def end(self) -> None:
        """From any thread: no py-spy outlives the agent. Does not wait."""
        self._spy.end()

    def _look(self, asked: str, ranks: Sequence[int]) -> None:
        with self._turn:
            for number in list(dict.fromkeys(ranks))[:MOST_RANKS]:
                try:
                    self._look_at(asked, number)
                except Exception as error:  # a look at a process must not cost the agent anything
                    self._say_once(f"the stack of rank {number} could not be read: {type(error).__name__}: {error}")

    def _look_at(self, asked: str, number: int) -> None:
        process = self._process_of(number)
        if process is None:
            return
        kernel = self._proc.kernel(process.pid)
        frames: tuple[Frame, ...] = ()
        said = self._spy(process.pid)
        if said.stack is not None:
            with suppress(ValueError):
                frames = python_stack(said.stack, process.pid)[1]
            said = said if frames else SpyAnswer(why="py-spy's answer could not be read")
        if said.why:
            self._say_once(f"{said.why}: of stuck ranks only the kernel's view is told")
        gpu = self._proc.uses_gpu(process.pid)
        if kernel is None or not self._proc.same(process):
            return  # it ended meanwhile, and another may have its number
        more: dict[str, Scalar] = {"request": asked, "gpu": gpu}
        if said.why:
            more["why"] = said.why
        self._give(stack_sign(number, process.pid, frames, kernel, self._state.placement.node, time.time(), **more))

    def _process_of(self, number: int) -> Process | None:
        """The process that writes the rank's slot, if it descends from the one that was started (a shell may be
        between); else that one. It stays a zombie until the agent ends, so its number is nobody else's."""
        found = next((rank for rank in self._state.group.ranks if rank.rank == number), None)
        if found is None or found.end is not None or found.pid is None:
            return None
        started = self._proc.find(found.pid)
        slot = self._state.slots()[found.local_rank]
        writer = self._proc.find(slot.pid) if slot is not None and slot.pid != found.pid else None
        return writer if writer is not None and self._proc.descends(writer.pid, found.pid) else started

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)
