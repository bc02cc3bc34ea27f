"""What an agent does next, as a pure function: no clock, no process, no file.

The table, first matching line wins:

| what is known                                 | teardown | exit code               | lingers |
|-----------------------------------------------|----------|-------------------------|---------|
| the agent got SIGTERM or SIGINT               | at once  | 1                       | no      |
| a newer generation exists                     | at once  | 76                      | no      |
| a rank ended with 76                          | at once  | 76                      | no      |
| a rank ended with 77                          | at once  | 77                      | no      |
| a rank was killed by a signal, or ended with 75 | at once | 75                      | no      |
| a rank could not be started                   | at once  | 126 or 127              | no      |
| a rank ended with another code                | at once  | that code               | if the job has more nodes |
| told to stop, ranks still running             | after their time to stop by themselves | 75 | no |
| told to stop, every rank ended                | nothing left | 75                  | no      |
| every rank ended with 0                       | nothing left | 0                   | no      |

srun reports the *highest* code of its tasks. When one agent fails, `--kill-on-bad-exit` sends SIGTERM to the others:
theirs is the lowest code that does not look finished, so that the first agent's comes through; 77 beats 76 beats 75.

Among ranks that failed the *first* one counts: the others usually fail because of it.

Lingering: when a whole node is lost, the ranks here fail too, within a tenth of a second on gloo, with an ordinary
error. An agent that left at once would take away the peer from whose place the controller probes the lost node. So it
stays for a moment, with its ranks gone, and answers probes, as long as the controller answers.
"""

from dataclasses import dataclass

from worker_hooks.protocol import exit_codes


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended. `code` for an exit, `signal` for a death by signal; `order` counts ends from 0."""

    rank: int
    code: int | None
    signal: int | None
    order: int
    launched: bool = True

    @property
    def clean(self) -> bool:
        return self.code == 0


@dataclass(frozen=True)
class Situation:
    """Everything a decision rests on. `running` counts the ranks that have not ended."""

    running: int
    ends: tuple[RankEnd, ...] = ()
    node_count: int = 1
    got_signal: int | None = None
    superseded_by: int | None = None
    stop_reason: str | None = None
    stop_time_over: bool = False


@dataclass(frozen=True)
class Verdict:
    """`exit_code` None: go on. `reason` is one sentence for the job's log and the `stopped` event."""

    exit_code: int | None
    reason: str
    lingers: bool = False


GO_ON = Verdict(None, "ranks are running")


def decide(now: Situation) -> Verdict:
    """The verdict on a situation; total, never raises."""
    if now.got_signal is not None:
        return Verdict(exit_codes.ENDED, f"the agent got signal {now.got_signal}")
    if now.superseded_by is not None:
        return Verdict(exit_codes.SUPERSEDED, f"generation {now.superseded_by} has taken over")
    failed = sorted((end for end in now.ends if not end.clean), key=lambda end: end.order)
    if failed and now.stop_reason is None:
        return _failure(failed, now.node_count)
    if now.stop_reason is not None:
        return _stopping(now)
    if now.running == 0:
        return Verdict(exit_codes.FINISHED, "every rank finished")
    return GO_ON


def _failure(failed: list[RankEnd], node_count: int) -> Verdict:
    for code, why in (
        (exit_codes.SUPERSEDED, "noticed that its generation is superseded"),
        (exit_codes.VERIFICATION_FAILED, "did not verify what it loaded"),
    ):
        for end in failed:
            if end.code == code:
                return Verdict(code, f"rank {end.rank} {why}")
    first = failed[0]
    if first.signal is not None:
        return Verdict(exit_codes.ATTEMPT_FAILED, f"rank {first.rank} was killed by signal {first.signal}")
    assert first.code is not None  # an end has a code or a signal
    if not first.launched:
        return Verdict(first.code, f"rank {first.rank} could not be started")
    lingers = node_count > 1 and first.code != exit_codes.ATTEMPT_FAILED
    return Verdict(first.code, f"rank {first.rank} exited with code {first.code}", lingers)


def _stopping(now: Situation) -> Verdict:
    if now.running == 0 or now.stop_time_over:
        return Verdict(exit_codes.ATTEMPT_FAILED, f"told to stop: {now.stop_reason}")
    return Verdict(None, "ranks are ending by themselves")
