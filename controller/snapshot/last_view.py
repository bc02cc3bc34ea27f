"""What this process stored last, so that the next view is compared in memory and only the difference touches rows.

It is of use only while the rows are exactly those that this process wrote. `Cluster.view_mark` proves it: drawn anew
for each stored view and changed by compare-and-set in the same transaction. A view stored by another process, a
transaction that was rolled back and a database restored from a backup all leave another mark than the one kept here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from controller.slurm.views import ClusterView, JobView, NodeView

Holders = tuple[JobView, ...]


@dataclass(frozen=True)
class LastView:
    """Per node what Slurm said of it, and the live jobs that held it or were leaving it, by id."""

    mark: str
    nodes: Mapping[str, NodeView]
    holders: Mapping[str, Holders]

    def same(self, name: str, node: NodeView, holders: Holders) -> bool:
        before = self.nodes.get(name)
        # The command line's adapter gives the same object for a record that did not change: the cheap answer first.
        return (before is node or before == node) and self.holders.get(name, ()) == holders


_kept: dict[int, LastView] = {}


def of(cluster_pk: int, mark: str) -> LastView | None:
    """None unless this process stored the view that carries `mark`."""
    last = _kept.get(cluster_pk)
    return last if last is not None and mark and last.mark == mark else None


def keep(cluster_pk: int, mark: str, view: ClusterView, holders: Mapping[str, Holders]) -> None:
    """Only after the transaction that stored it."""
    _kept[cluster_pk] = LastView(mark, view.nodes, holders)


def holders_of(view: ClusterView) -> dict[str, Holders]:
    """By node name: the live jobs that hold it or are still leaving it."""
    found: dict[str, list[JobView]] = {}
    live = (job for job in view.jobs.values() if job.nodes and job.state.live)
    for job in sorted(live, key=lambda each: each.job_id):
        for name in job.nodes:
            found.setdefault(name, []).append(job)
    return {name: tuple(jobs) for name, jobs in found.items()}


def changed(view: ClusterView, holders: Mapping[str, Holders], last: LastView | None) -> Iterator[str]:
    """Names of nodes whose rows may have to be written: all of them without a last view."""
    for name, node in view.nodes.items():
        if last is None or not last.same(name, node, holders.get(name, ())):
            yield name
