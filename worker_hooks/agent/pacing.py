"""When to post next, and what the controller's clock says. Pure: times and randomness come in."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

BACKOFF_FIRST_S = 0.5
BACKOFF_CAP_S = 5.0
LEAST_S = 0.1
MOST_S = 60.0


def backoff_s(failures: int, uniform: Callable[[float, float], float], asked_s: float | None = None) -> float:
    """Full jitter: anywhere up to the doubled limit, so that agents that failed together do not return together.

    `asked_s` is the server's Retry-After: no post before it.
    """
    limit = min(BACKOFF_CAP_S, BACKOFF_FIRST_S * 2 ** min(failures, 16))
    wait = max(LEAST_S, uniform(0.0, limit))
    return min(MOST_S, wait if asked_s is None else asked_s + wait)


def pace_s(asked_s: float) -> float:
    """The controller's pace, within what an agent can bear: it must neither spin nor fall silent."""
    return min(MOST_S, max(LEAST_S, asked_s))


@dataclass
class ClockOffset:
    """Seconds to add to this node's clock to get the controller's, from the quickest of the last exchanges.

    The true offset lies within half a round trip of the estimate, so the quickest exchange is the best witness.
    """

    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=32))

    def add(self, sent_at: float, received_at: float, server_time: float) -> None:
        if received_at >= sent_at:
            self.samples.append((received_at - sent_at, server_time - (sent_at + received_at) / 2))

    @property
    def seconds(self) -> float | None:
        return min(self.samples)[1] if self.samples else None
