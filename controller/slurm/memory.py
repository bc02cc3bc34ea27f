"""The newest reading's records and what they were read as, so that the next reading parses only what changed.

A view is a function of its record's text alone: the same text gives the same view, whatever happened in between. What
the newest reading does not hold is forgotten with it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from controller.slurm.columns import Record
from controller.slurm.views import JobView, NodeView

Text = TypeVar("Text", bound=Hashable)
View = TypeVar("View")


class Memory(Generic[Text, View]):
    """Of one kind of record. `parse` must be a pure function."""

    def __init__(self) -> None:
        self._views: dict[Text, View] = {}

    def read(self, records: Iterable[Text], parse: Callable[[Text], View]) -> list[View]:
        """The views of `records`, in their order. What `parse` raises leaves the memory as it was."""
        known, fresh = self._views, {}
        views = []
        for record in records:
            view = known.get(record)
            if view is None:
                view = parse(record)
            fresh[record] = view
            views.append(view)
        self._views = fresh
        return views


class Reading:
    """What one process remembers of one cluster: each task makes an adapter of its own, and all may share this."""

    def __init__(self) -> None:
        self.jobs: Memory[Record, JobView] = Memory()
        self._nodes: Memory[str, NodeView] = Memory()
        self._port = 0

    def of_nodes(self, default_port: int) -> Memory[str, NodeView]:
        """A node's view also depends on the configured port of slurmd."""
        if default_port != self._port:
            self._nodes, self._port = Memory(), default_port
        return self._nodes


OF_THIS_PROCESS = Reading()
