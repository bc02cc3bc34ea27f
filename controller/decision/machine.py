"""State machines as data: one table a machine, every (state, event) pair listed or refused."""

from collections.abc import Mapping
from dataclasses import dataclass


class RefusedTransition(ValueError):
    """The event is not allowed in that state. Losing a race looks like this too; the caller reads again."""


@dataclass(frozen=True)
class Machine:
    """`table[state][event] -> next state`. `initial` is where a new row starts, `final` where nothing follows."""

    name: str
    initial: str
    final: frozenset[str]
    table: Mapping[str, Mapping[str, str]]

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(self.table)

    @property
    def live(self) -> tuple[str, ...]:
        return tuple(state for state in self.table if state not in self.final)

    @property
    def events(self) -> frozenset[str]:
        return frozenset(event for row in self.table.values() for event in row)

    def after(self, state: str, event: str) -> str:
        """The state that follows, or RefusedTransition."""
        try:
            return self.table[state][event]
        except KeyError:
            raise RefusedTransition(f"{self.name}: {event!r} is refused in state {state!r}") from None

    def allows(self, state: str, event: str) -> bool:
        return event in self.table.get(state, {})
