"""Counting the nodes that a job could start on, before one is kept from it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controller.slurm import capacity as counting
from controller.slurm.capacity import Capacity
from controller.slurm.states import parse_job, parse_node
from controller.slurm.versions import parse as version
from controller.slurm.views import ClusterView, JobView, NodeView, PartitionView, ReservationView

pytestmark = pytest.mark.pure

NOW = datetime(2026, 11, 29, tzinfo=UTC)


def view(states: str = "IDLE IDLE IDLE IDLE", **more: object) -> ClusterView:
    """gpu1, gpu2, ... in `train`; those with an even number have the feature `ib` as well."""
    nodes = {
        f"gpu{n}": NodeView(
            name=f"gpu{n}",
            state=parse_node(state),
            partitions=("train",),
            features=("h100", "ib") if n % 2 == 0 else ("h100",),
        )
        for n, state in enumerate(states.split(), start=1)
    }
    more.setdefault("partitions", {"train": PartitionView("train", nodes=tuple(nodes))})
    return ClusterView("c", version("22.05.8"), nodes, {}, NOW, NOW, **more)  # type: ignore[arg-type]


def job(needs: int = 2, **more: object) -> JobView:
    quiet: dict[str, object] = {"partition": ("train",), "num_nodes": needs}
    return JobView("7", 7, parse_job("PENDING"), **{**quiet, **more})  # type: ignore[arg-type]


def counted(cluster: ClusterView, wanted: JobView, excluded: tuple[str, ...] = ()) -> Capacity:
    found = counting.capacity(cluster, wanted, excluded)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("states", "needs", "names", "kept"),
    [
        ("IDLE IDLE IDLE IDLE", 3, ["gpu2"], ["gpu2"]),
        ("IDLE IDLE IDLE IDLE", 4, ["gpu2"], []),
        ("IDLE IDLE IDLE IDLE", 3, ["gpu2", "gpu3"], ["gpu2"]),  # the first is worth more
        ("ALLOCATED ALLOCATED MIXED IDLE", 3, ["gpu1"], ["gpu1"]),  # busy is not gone
        ("IDLE IDLE IDLE IDLE+DRAIN", 3, ["gpu1"], []),  # three usable, three needed
        ("IDLE IDLE+DRAIN IDLE IDLE", 3, ["gpu2"], ["gpu2"]),  # it could not be used anyway
        ("DOWN IDLE+DRAIN IDLE IDLE", 3, ["gpu3"], ["gpu3"]),  # too few with it as well: it waits for a repair
        ("DOWN+DRAIN IDLE", 2, ["gpu1"], []),  # with the list the job could never run again
        ("IDLE IDLE", 1, ["gpu9"], ["gpu9"]),  # not one of its nodes: it costs nothing
    ],
)
def test_what_can_be_kept_from_a_job(states: str, needs: int, names: list[str], kept: list[str]) -> None:
    assert counted(view(states), job(needs)).affordable(names) == kept


def test_the_users_own_exclusions_count_first() -> None:
    assert counted(view(), job(3), ("gpu4",)).affordable(["gpu1"]) == []
    assert counted(view(), job(2), ("gpu4",)).affordable(["gpu1"]) == ["gpu1"]


@pytest.mark.parametrize(
    ("expression", "fitting"),
    [
        ("", 4),
        ("ib", 2),
        ("h100&ib", 2),
        ("ib|h100", 4),
        ("a100", 0),
        *((clever, None) for clever in ("h100*2", "[ib|h100]", "h100&(ib|x)", "h100&ib|x", "!ib", "h100,ib")),
    ],
)
def test_features_are_read_where_they_are_simple(expression: str, fitting: int | None) -> None:
    found = counting.capacity(view(), job(1, features=expression))
    assert (None if found is None else len(found.fitting)) == fitting


def test_a_job_may_start_in_any_of_its_partitions() -> None:
    both = {"train": PartitionView("train", nodes=("gpu1",)), "more": PartitionView("more", nodes=("gpu2", "gpu3"))}
    found = counted(view(partitions=both), job(2, partition=("train", "more")))
    assert found.fitting == {"gpu1", "gpu2", "gpu3"}
    without_partitions = counted(view(partitions={}), job(2))
    assert len(without_partitions.fitting) == 4, "nodes say themselves where they belong"


def test_a_reservation_narrows_unless_it_is_flexible() -> None:
    course = ReservationView("course", nodes=("gpu1", "gpu2"))
    ours = ReservationView("ours", nodes=("gpu1",), flags=frozenset({"FLEX"}))
    cluster = view(reservations={"course": course, "ours": ours})
    assert counted(cluster, job(2, reservation="course")).affordable(["gpu1"]) == []
    assert counted(cluster, job(2, reservation="ours")).affordable(["gpu1"]) == ["gpu1"]


def test_the_jobs_own_reserved_nodes_are_usable() -> None:
    """Slurm flags every node of an active reservation, whoever's it is."""
    own = {"ours": ReservationView("ours", nodes=("gpu1",), flags=frozenset({"FLEX"}))}
    cluster = view("ALLOCATED+RESERVED IDLE IDLE+DRAIN", reservations=own)
    assert counting.capacity(cluster, job(), kept=["ours"]).usable == {"gpu1", "gpu2"}  # type: ignore[union-attr]
    assert counted(cluster, job(reservation="ours")).usable == {"gpu1", "gpu2"}
    assert counted(cluster, job()).usable == {"gpu2"}


def test_what_is_hidden_is_not_counted() -> None:
    assert counting.capacity(view(), job(reservation="hidden")) is None
    assert counting.capacity(view(), job(partition=("hidden",))) is None
    assert counting.capacity(view(private_data=("nodes",)), job()) is None
    assert counting.capacity(view(private_data=("accounts",)), job()) is not None
