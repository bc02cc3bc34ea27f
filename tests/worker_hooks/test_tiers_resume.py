"""Resuming from shares on nodes: this node's, a partner's, shared storage's; two nodes on one machine, real ranks."""

import shutil

import pytest

from tests.worker_hooks.tiers_stage import DIES, Cluster, cluster, replicated, same_as_uninterrupted
from worker_hooks.protocol import generations
from worker_hooks.protocol.tiers import LOCAL

pytestmark = pytest.mark.torch
__all__ = ["cluster", "replicated"]


# --- this node's and the partner's ----------------------------------------------------------------------------------


def test_from_the_nodes_own_disks(cluster: Cluster) -> None:
    """Two updates are lost less than from shared storage; what the other node wrote comes from there."""
    cluster.killed()
    resumed = cluster.resumed()
    assert resumed.step == 10
    assert all(places["local"] == 1 and "shared" not in places for places in resumed.places), resumed.places
    same_as_uninterrupted(cluster, resumed)


def test_a_lost_nodes_share_comes_from_its_partner(cluster: Cluster) -> None:
    cluster.killed(peer=True)
    shutil.rmtree(cluster.disk(2))
    resumed = cluster.resumed(peer=True)
    assert resumed.step == 10
    assert resumed.places[0] == {"local": 2} and resumed.places[1] == {"peer": 2}
    same_as_uninterrupted(cluster, resumed)
    saved = resumed.checkpoints("local", "committed")
    assert saved and all(record["copies"] == 2 for record in saved), "the next saves go to the new disk as before"


def test_without_a_partner_the_older_shared_step_is_taken_and_the_reason_told(cluster: Cluster) -> None:
    cluster.killed()
    shutil.rmtree(cluster.disk(2))
    resumed = cluster.resumed()
    assert resumed.step == 8
    assert "step-00000010.g1: the share of rank 1 was only on gpu2, where it is no more" in resumed.signs(
        "checkpoint_not_whole"
    )
    assert not list(cluster.world.run.glob("**/quarantine.json")), "its node may come back"
    same_as_uninterrupted(cluster, resumed)


def test_a_node_is_brought_what_its_ranks_read_and_no_more(cluster: Cluster) -> None:
    """Replicated, each rank reads every share whole; sharded, a few small tensors of the other one's."""
    cluster.killed()
    started = cluster.world.tiny(2, env=cluster.env, **{**DIES, **cluster.wrap})
    assert any(started.wait()), started.text()
    brought = cluster.disk(1) / "step-00000010.g1" / "rank-00001.json"
    assert brought.exists() == (not cluster.wrap)


def test_an_attempt_without_a_local_folder_says_what_it_cannot_reach(replicated: Cluster) -> None:
    replicated.killed()
    replicated.env = {}
    resumed = replicated.resumed()
    assert resumed.step == 8
    assert resumed.signs("checkpoint_not_whole") == [
        "step-00000010.g1: its shares lie on nodes, and this attempt has no folder there (local=, RELUME_LOCAL)"
    ]


def test_a_node_that_is_not_in_this_job_is_named(replicated: Cluster) -> None:
    replicated.killed()
    replicated.world.nodes = 1
    resumed = replicated.resumed()
    assert resumed.step == 8
    assert resumed.signs("checkpoint_not_whole")[0] == (
        "step-00000010.g1: the share of rank 1 was only on gpu2, which is not in this job"
    )


def test_both_ranks_on_the_node_that_has_it_all(replicated: Cluster) -> None:
    """The other node is gone for good, and its shares were copied."""
    replicated.killed(peer=True)
    replicated.world.nodes = 1
    resumed = replicated.resumed(peer=True)
    assert resumed.step == 10 and resumed.places == [{"local": 2}] * 2
    same_as_uninterrupted(replicated, resumed)


# --- what counts ----------------------------------------------------------------------------------------------------


def test_a_superseded_generations_node_local_step_is_never_loaded(replicated: Cluster) -> None:
    """It was committed after its successor began, which had not accepted it."""
    replicated.killed()
    index = replicated.world.run / "local" / "step-00000010.g1"
    hidden = index.with_name("elsewhere")
    index.rename(hidden)
    share = replicated.disk(1) / index.name
    shutil.copytree(share, replicated.disks / "kept")
    assert replicated.resumed(total=9).step == 8
    hidden.rename(index)
    shutil.copytree(replicated.disks / "kept", share, dirs_exist_ok=True)
    assert replicated.resumed(name="third", total=12).step == 9
    assert index.name not in generations.accepted_folders(replicated.world.run, LOCAL)


def test_a_step_that_fails_its_verification_is_set_aside_on_every_tier(replicated: Cluster) -> None:
    """Otherwise the next attempt would take the same step from the other tier, and fail again."""
    replicated.killed(die={"rank": None, "step": 9})
    env = {**replicated.env, "RELUME_SABOTAGE": "weights"}
    failed = replicated.world.tiny(2, env=env, every=4)
    assert failed.wait() == [77, 77], failed.text()
    name = "step-00000008.g1"
    for folder in (replicated.world.run / name, replicated.world.run / "local" / name):
        assert "failed verification" in (folder / "quarantine.json").read_text()
    assert replicated.resumed().step == 6


def test_a_peer_that_dies_in_the_middle_of_its_saves(replicated: Cluster) -> None:
    """Whatever was under way, the resumed run is the uninterrupted one."""
    replicated.env["RELUME_LOCAL_EVERY"] = "1"
    replicated.killed(peer=True, asynchronous=True, sleep_s=0.05, die={"rank": 1, "step": 9})
    resumed = replicated.resumed(peer=True)
    assert 1 <= resumed.step <= 9
    same_as_uninterrupted(replicated, resumed)


# --- another number of ranks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [2, 3])
def test_another_number_of_ranks_from_the_nodes(cluster: Cluster, now: int) -> None:
    cluster.killed(4, total=15, samples=240)
    resumed = cluster.resumed(now, elastic="keep_lr", total=15, samples=240)
    assert resumed.step == 10
    outcomes = {
        event["outcome"]
        for found in resumed.events
        for event in found
        if event["kind"] == "verification" and event["stage"] == "before_first_step"
    }
    assert outcomes == {"RESHARDED"}
    assert len({end["parameters"] for end in resumed.ends}) == (1 if not cluster.wrap else now)
