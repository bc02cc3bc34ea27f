"""The process that runs pyslurm: started when first asked, ended when it does not answer in time, started again.

A pyslurm call that hangs holds the interpreter and cannot be ended from inside; ended with its process, it leaves
nothing behind but, for a write, an unknown outcome. Behind a prefix that we may not kill (sudo) the process is left
alone instead: its stdin is closed, so it ends as soon as Slurm's library returns.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from controller.errors import SlurmTimeout, SlurmUnavailable, SlurmUnreadable
from controller.slurm.runner import Child, Runner

WORKER = Path(__file__).with_name("pyslurm_worker.py")
COMMAND = (sys.executable, "-P", str(WORKER))  # -P: not its own folder first, where a `pyslurm.py` lies


class Asked(Protocol):
    """Who answers questions of `pyslurm_worker`."""

    def ask(self, call: str, arguments: Mapping[str, Any], *, limit: float, write: bool) -> Mapping[str, Any]:
        """The worker's answer, an error of Slurm's included. SlurmUnavailable when there is none within `limit`
        seconds; its outcome is unknown for a `write`."""
        ...


@dataclass(slots=True)
class PySlurmProcess:
    """One identity's worker. Threads take turns; a process forked from ours starts one of its own."""

    runner: Runner = field(default_factory=Runner)
    _child: Child | None = None
    _owner: int = 0
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, call: str, arguments: Mapping[str, Any], *, limit: float, write: bool) -> Mapping[str, Any]:
        if not self._turn.acquire(timeout=limit):
            raise SlurmTimeout(f"pyslurm {call}: an earlier call still runs", outcome_unknown=False)
        try:
            line = self._line(json.dumps({"call": call, "with": arguments}).encode(), call, limit, write)
        finally:
            self._turn.release()
        try:
            answer = json.loads(line)
            return {"value": answer["value"]} if "value" in answer else {**answer, "error": str(answer["error"])}
        except (ValueError, KeyError, TypeError) as wrong:
            raise SlurmUnreadable(f"pyslurm {call}: no answer of ours: {wrong!r}", text=repr(line[:2000])) from wrong

    def close(self) -> str:
        """Ends the process, if there is one; returns the end of what it said on stderr."""
        child, self._child = self._child, None
        return child.end() if child is not None and self._owner == os.getpid() else ""

    def _line(self, question: bytes, call: str, limit: float, write: bool) -> bytes:
        child = self._running(call)
        try:
            return child.ask(question, limit)
        except TimeoutError:
            message = f"pyslurm {call}: no answer in {limit:g} s"
            raise SlurmTimeout(message, outcome_unknown=write, text=self.close()) from None
        except EOFError:
            text = self.close()
            message = f"pyslurm {call}: its process ended: {text.splitlines()[-1] if text else 'without a word'}"
            raise SlurmUnavailable(message, outcome_unknown=write, text=text) from None
        except ValueError as wrong:
            raise SlurmUnreadable(f"pyslurm {call}: {wrong}", text=self.close()) from wrong

    def _running(self, call: str) -> Child:
        if self._child is not None and self._owner == os.getpid() and self._child.alive:
            return self._child
        self.close()  # it ended after a time without questions, or belongs to the process that we were forked from
        try:
            child = self.runner.start(COMMAND)
        except OSError as wrong:
            message = f"pyslurm {call}: {wrong}"
            raise SlurmUnavailable(message, outcome_unknown=False, text=str(wrong)) from wrong
        self._child, self._owner = child, os.getpid()
        return child
