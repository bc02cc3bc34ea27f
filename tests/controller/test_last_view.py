"""What a process remembers of the view that it stored: never served when the rows could be others'."""

from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from controller.clock import aware
from controller.models import Cluster, Node
from controller.slurm.fake import FakeSlurm
from controller.snapshot import last_view
from controller.snapshot import poll as polling
from controller.snapshot.poll import poll
from tests.builders import T0

pytestmark = pytest.mark.db


class Slurm(FakeSlurm):
    """Two idle nodes, at a time of our own."""

    def __init__(self) -> None:
        self.now = T0
        super().__init__(lambda: aware(self.now))
        self.add_nodes("gpu1", "gpu2")


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


@pytest.fixture
def cluster(db: None) -> Cluster:
    return Cluster.objects.create(name="fake")


@pytest.fixture(autouse=True)
def another_process() -> Iterator[None]:
    """Each test begins in a process that has stored nothing."""
    last_view._kept.clear()
    yield
    last_view._kept.clear()


def read_rows(cluster: Cluster, slurm: Slurm) -> list[str]:
    """The questions for whole rows of nodes that one poll asks."""
    slurm.now += 2
    with CaptureQueriesContext(connection) as queries:
        assert poll(cluster, slurm, slurm.now)
    return [q["sql"] for q in queries if q["sql"].startswith("SELECT") and '"controller_node"."reason"' in q["sql"]]


def node(name: str) -> Node:
    return Node.objects.get(name=name)


def test_rows_are_read_for_what_changed_only(slurm: Slurm, cluster: Cluster) -> None:
    assert read_rows(cluster, slurm)
    assert read_rows(cluster, slurm) == []
    slurm.drain_node("gpu2", "fan")
    (asked,) = read_rows(cluster, slurm)
    assert "gpu2" in asked and "gpu1" not in asked
    assert node("gpu2").flags == ["DRAIN"] and node("gpu2").events.get().kind == "drained"
    assert read_rows(cluster, slurm) == []
    assert node("gpu1").seen_at == node("gpu2").seen_at == aware(slurm.now)


def test_a_job_that_comes_and_goes_changes_its_nodes(slurm: Slurm, cluster: Cluster) -> None:
    read_rows(cluster, slurm)
    job_id = slurm.submit(num_nodes=1)
    slurm.now += 1
    slurm.tick()
    (asked,) = read_rows(cluster, slurm)
    assert node("gpu1").jobs == [job_id] and "gpu2" not in asked
    with slurm.world() as world:
        world.jobs.clear()
    read_rows(cluster, slurm)
    assert node("gpu1").jobs == [] == node("gpu1").tenants


def test_a_job_of_another_under_the_same_id_is_not_the_one_remembered(slurm: Slurm, cluster: Cluster) -> None:
    slurm.submit(num_nodes=1)
    slurm.tick()
    read_rows(cluster, slurm)
    with slurm.world() as world:
        (job,) = world.jobs.values()
        job.user = "eve"
    read_rows(cluster, slurm)
    assert [tenant["user"] for tenant in node("gpu1").tenants] == ["eve"]


def test_what_another_process_stored_in_between_is_not_taken_for_our_own(slurm: Slurm, cluster: Cluster) -> None:
    """We store an idle node, they store it drained, it is idle again: as we remember it, and not as the rows are."""
    read_rows(cluster, slurm)
    ours = dict(last_view._kept)
    last_view._kept.clear()
    slurm.drain_node("gpu2", "fan")
    read_rows(cluster, slurm)
    last_view._kept.update(ours)
    slurm.resume_node("gpu2")
    read_rows(cluster, slurm)
    assert node("gpu2").flags == [] and node("gpu2").reason == ""


def test_a_view_that_was_rolled_back_is_not_remembered(slurm: Slurm, cluster: Cluster) -> None:
    read_rows(cluster, slurm)
    slurm.drain_node("gpu2", "fan")
    with pytest.raises(RuntimeError), transaction.atomic():
        read_rows(cluster, slurm)
        raise RuntimeError("the database went away")
    assert node("gpu2").flags == []
    read_rows(cluster, slurm)
    assert node("gpu2").flags == ["DRAIN"]


def test_a_database_restored_from_a_backup_is_not_what_we_remember(slurm: Slurm, cluster: Cluster) -> None:
    read_rows(cluster, slurm)
    backup = list(Node.objects.values()), Cluster.objects.values().get()
    slurm.drain_node("gpu2", "fan")
    read_rows(cluster, slurm)
    rows, cluster_row = backup
    for row in rows:
        Node.objects.filter(pk=row["id"]).update(**row)
    Cluster.objects.filter(pk=cluster.pk).update(**cluster_row)
    read_rows(cluster, slurm)
    assert node("gpu2").flags == ["DRAIN"]


def test_of_two_processes_that_store_at_once_one_stores(
    slurm: Slurm, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_rows(cluster, slurm)
    slurm.drain_node("gpu2", "fan")
    trusted = polling._trusted

    def overtaken(*arguments: object) -> bool:
        Cluster.objects.update(view_mark="theirs")
        return trusted(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(polling, "_trusted", overtaken)
    assert not poll(cluster, slurm, slurm.now + 2)
    assert node("gpu2").flags == []
    monkeypatch.undo()
    read_rows(cluster, slurm)
    assert node("gpu2").flags == ["DRAIN"]


def test_a_node_that_is_not_shown_grows_old_and_comes_back(slurm: Slurm, cluster: Cluster) -> None:
    read_rows(cluster, slurm)
    seen = slurm.now
    with slurm.world() as world:
        hidden = world.nodes.pop("gpu2")
    assert read_rows(cluster, slurm) == [] == read_rows(cluster, slurm)
    assert node("gpu2").seen_at == aware(seen) and node("gpu1").seen_at == aware(slurm.now)
    with slurm.world() as world:
        world.nodes["gpu2"] = hidden
    (asked,) = read_rows(cluster, slurm)
    assert "gpu2" in asked and node("gpu2").seen_at == node("gpu2").excused_at == aware(slurm.now)
    assert read_rows(cluster, slurm) == [] and node("gpu2").seen_at == aware(slurm.now)


def test_a_new_process_finds_out_who_was_not_shown(slurm: Slurm, cluster: Cluster) -> None:
    read_rows(cluster, slurm)
    with slurm.world() as world:
        world.nodes.pop("gpu2")
    last_view._kept.clear()
    seen = slurm.now
    read_rows(cluster, slurm)
    assert node("gpu2").seen_at == aware(seen) and node("gpu1").seen_at == aware(slurm.now)
