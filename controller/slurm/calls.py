"""One call of a Slurm command: run with a time limit, its failure made an error of ours. Nothing is retried here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from controller.errors import SlurmTimeout, SlurmUnavailable, SlurmUnreadable
from controller.slurm.refusals import error_from
from controller.slurm.runner import Completed, Runner


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds per call. Slurm's own commands give up after MessageTimeout (10 s) for each slurmctld they try."""

    batch: float = 20.0
    read: float = 10.0
    write: float = 10.0


@dataclass(frozen=True, slots=True)
class Calls:
    """`clock` gives the aware time that readings are stamped with.

    Node and job writes may run under separate credentials: give each its own runner. Reservations are job writes: both
    need an Operator, where node updates need an Administrator.
    """

    clock: Callable[[], datetime]
    reader: Runner = field(default_factory=Runner)
    job_writer: Runner | None = None
    node_writer: Runner | None = None
    limits: TimeLimits = TimeLimits()

    def ask(self, *argv: str, limit: float) -> str:
        """What a reading call printed."""
        return checked_output(self.attempt(argv, limit), " ".join(argv), write=False)

    def attempt(self, argv: Sequence[str], limit: float) -> Completed:
        """A reading call whose exit code its caller judges."""
        return completed(self.reader, argv, limit, write=False)

    def write_node(self, *argv: str) -> Completed:
        return self._write(self.node_writer or self.reader, argv)

    def write_job(self, *argv: str) -> Completed:
        return self._write(self.job_writer or self.reader, argv)

    def _write(self, runner: Runner, argv: Sequence[str]) -> Completed:
        done = completed(runner, argv, self.limits.write, write=True)
        checked_output(done, " ".join(argv[:3]), write=True)
        return done


def completed(runner: Runner, argv: Sequence[str], limit: float, *, write: bool) -> Completed:
    """A command that ran to its end, whatever its exit code. SlurmUnavailable or SlurmUnreadable when it did not."""
    call = " ".join(argv[:3])
    try:
        done = runner.run(argv, limit)
    except OSError as wrong:
        raise SlurmUnavailable(f"{call}: {wrong}", outcome_unknown=False, text=str(wrong)) from wrong
    if done.timed_out:
        raise SlurmTimeout(f"{call}: no answer in {limit:g} s", outcome_unknown=write, text=done.err)
    if done.truncated:
        raise SlurmUnreadable(f"{call}: more output than we take", text=done.err)
    return done


def checked_output(done: Completed, call: str, *, write: bool) -> str:
    if done.rc == 0:
        return done.out
    if done.rc is not None and done.rc < 0:
        raise SlurmUnavailable(f"{call}: killed by signal {-done.rc}", outcome_unknown=write, text=done.err)
    raise error_from(f"{done.err}\n{done.out}".strip(), call=call, write=write)
