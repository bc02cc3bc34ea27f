"""A bundle's JSON and folders become cases; what is wrong with one is said with file and key."""

import json
from pathlib import Path
from typing import Any

import pytest

from controller.bundles import notes
from controller.bundles.fields import BundleError, Fields, rank_nodes
from controller.bundles.files import read_path
from controller.bundles.read import read_case
from controller.decision.evidence import CONTROLLER, JOB, SENSOR, SLURM, Case

pytestmark = pytest.mark.pure
XID = "[ 2210.417733] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
ERROR = "[rank3]: ValueError: bad sample 918273 in shard 4"


def case(**given: Any) -> Case:
    (scene,) = read_case(given)
    return scene.case


def test_kernel_lines_are_the_sensors_word_and_log_lines_the_jobs() -> None:
    found = case(dmesg={"gn31": [XID]}, log=[ERROR])
    origins = {(e.code, e.origin, e.node, e.rank) for e in found.evidence}
    assert ("xid.79", SENSOR, "gn31", None) in origins
    assert ("python.exception", JOB, None, 3) in origins
    assert found.read_clean == {"gn31"}
    assert found.trusted
    assert len({e.id for e in found.evidence}) == len(found.evidence)


def test_a_kernel_log_that_could_not_be_read_is_unknown_and_not_clean() -> None:
    assert case(dmesg="not readable").unreadable == {"kernel"}
    assert case(dmesg={"gn01": "not readable", "gn02": []}).read_clean == {"gn02"}
    assert case(dmesg={"gn02": []}).unreadable == frozenset()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"0-3": "a1", "4,6-7": "a2"}, {0: "a1", 1: "a1", 2: "a1", 3: "a1", 4: "a2", 6: "a2", 7: "a2"}),
        (["a1", "a2"], {0: "a1", 1: "a2"}),
        ({"0": "a1"}, {0: "a1"}),
        (None, {}),
    ],
)
def test_ranks_and_their_nodes(given: Any, expected: dict[int, str]) -> None:
    assert rank_nodes(given, "rank_hosts") == expected


def test_sinfo_gives_states_and_evidence_of_the_unusual_ones() -> None:
    found = case(sinfo=["gn[01-03,05] idle", "gn04 down* Not responding [slurm@2026-03-05T03:12:40]"])
    assert found.node_facts["gn04"].base == "DOWN"
    assert not found.node_facts["gn04"].responding
    assert found.node_facts["gn04"].reason == "Not responding"
    assert found.node_facts["gn04"].reason_user == "slurm"
    assert [(e.code, e.node, e.origin) for e in found.evidence] == [("slurm.node_state", "gn04", SLURM)]


def test_a_node_without_a_name_is_the_one_that_slurms_lines_name() -> None:
    line = (
        "error: *** STEP 63611.0 STEPD TERMINATED ON cn06 AT 2026-11-14T08:14:21 DUE TO JOB NOT ENDING WITH SIGNALS ***"
    )
    found = case(log=[line], node={"State": "IDLE+DRAIN", "Reason": "Kill task failed [root@2026-11-14T08:14:23]"})
    assert "DRAIN" in found.node_facts["cn06"].flags


@pytest.mark.parametrize(
    "given", [{"sacct": {"State": "NODE_FAIL"}}, {"slurm": {"JobState": "NODE_FAIL"}}, {"slurm_state": "NODE_FAIL"}]
)
def test_the_jobs_state_from_any_key(given: dict[str, Any]) -> None:
    found = case(**given)
    assert found.slurm is not None
    assert found.slurm.base == "NODE_FAIL"


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("run complete, final checkpoint step 60000 verified", True),
        ("training finished at step 100", True),
        ("run not complete, step 500 of 60000", False),
        ("step 500 of 60000", False),
    ],
)
def test_what_the_hook_reported(text: str, finished: bool) -> None:
    found = case(hook={"reported": text})
    assert found.finished is finished


@pytest.mark.parametrize(
    ("text", "goes_on"),
    [
        ("steps 5100..5200 continue at normal pace after the line", True),
        ("the job stopped at step 5100", False),
        ("no heartbeat after the line", False),
    ],
)
def test_heartbeats_after_the_signs(text: str, goes_on: bool) -> None:
    assert case(heartbeats=text).still_training is goes_on


def test_equals_that_did_the_same_without_fault() -> None:
    assert case(other_nodes="gn[50-52] initialised 8 GPUs each").healthy_nodes == {"gn50", "gn51", "gn52"}
    alike = case(other_nodes="gn[50-52] print the same error")
    assert alike.healthy_nodes == frozenset()
    assert alike.facts["others_alike"] is True


def test_history_in_words_and_in_entries() -> None:
    assert case(history="no Xid on gn18 in the last 30 days").evidence == ()
    (one,) = case(history="Xid 94 on gn26, 0000:00:08, 6 hours ago").evidence
    assert (one.code, one.origin, one.node, one.attrs["of"]) == ("history.error", CONTROLLER, "gn26", "xid.94")
    assert one.attrs["hours_ago"] == 6.0
    rows = case(history=[{"job": 6501, "node": "dg13", "error": "uncorrectable ECC"}]).evidence
    assert [(e.node, e.attrs["of"], e.attrs["job"]) for e in rows] == [("dg13", "cuda.ecc", "6501")]


def test_attempts_the_last_one_is_the_present_one() -> None:
    found = case(attempts=[{"last_step": 400, "log": [ERROR]}, {"last_step": 400, "log": [ERROR]}])
    assert (found.last_step, found.same_before, len(found.attempts)) == (400, 1, 1)
    further = case(attempts=[{"last_step": 400, "log": []}, {"last_step": 900, "log": []}])
    assert further.same_before == 0
    assert case(attempts_same=2).same_before == 1


def test_scenarios_are_cases_of_their_own() -> None:
    scenes = read_case({"scenario_1": {"gn46": [ERROR], "gn47": []}, "scenario_2": {"gn46": [ERROR], "gn47": [ERROR]}})
    assert [scene.name for scene in scenes] == ["scenario_1", "scenario_2"]
    assert scenes[0].case.healthy_nodes == {"gn47"}
    assert scenes[1].case.healthy_nodes == frozenset()


def test_observations_in_words() -> None:
    given = ["NaN at step 910 on 8-GPU node gn48", "no Xid was seen on gn48", "uncorrectable ECC errors on gn48"]
    found = case(evidence=given).evidence
    assert [(e.code, e.node) for e in found] == [("loss.not_finite", "gn48"), ("gpu.ecc_uncorrected", "gn48")]


def test_other_plain_values_are_facts_about_the_job() -> None:
    assert case(elapsed_s=12, strange="text").facts == {"elapsed_s": 12, "strange": "text"}


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ([], "input"),
        ({"log": 5}, "log"),
        ({"log": [5]}, "log[0]"),
        ({"log": {"gn01": 5}}, "log.gn01"),
        ({"dmesg": 5}, "dmesg"),
        ({"rank_hosts": {"x": "gn01"}}, "rank_hosts"),
        ({"rank_hosts": {"0-99999999": "gn01"}}, "rank_hosts"),
        ({"rank_hosts": 7}, "rank_hosts"),
        ({"ip_hosts": {"10.0.0.1": 3}}, "ip_hosts"),
        ({"nodes_of_job": "gn[01-"}, "nodes_of_job"),
        ({"last_step": "many"}, "last_step"),
        ({"attempts": "two"}, "attempts"),
        ({"attempts": [1]}, "attempts[0]"),
        ({"history": [5]}, "history[0]"),
        ({"sinfo": ["gn[ idle"]}, "sinfo"),
        ({"hook": []}, "hook"),
        ({"heartbeats": 1}, "heartbeats"),
        ({"sacct": 5}, "sacct"),
        ({"scenario_1": 5}, "scenario_1"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(given: Any, where: str) -> None:
    with pytest.raises(BundleError) as error:
        read_case(given)
    assert where in error.value.where


def test_a_folder(tmp_path: Path) -> None:
    for part, text in (("kernel/gn31.log", XID), ("job/rank-3.log", ERROR), ("job/out.log", ERROR)):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        (tmp_path / part).write_text(text + "\n")
    (tmp_path / "case.json").write_text(json.dumps({"rank_hosts": {"0-7": "gn31"}, "last_step": 5}))
    (scene,) = read_path(tmp_path)
    assert {(e.code, e.node) for e in scene.case.evidence if e.origin == SENSOR} == {("xid.79", "gn31")}
    assert {e.rank for e in scene.case.evidence if e.origin == JOB} == {3}
    assert scene.case.last_step == 5
    assert scene.case.read_clean == {"gn31"}


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"holds none of case\.json"):
        read_path(tmp_path)
    (tmp_path / "case.json").write_text("{")
    with pytest.raises(BundleError, match=r"case\.json: not JSON"):
        read_path(tmp_path)
    with pytest.raises(BundleError, match="No such file"):
        read_path(tmp_path / "none.json")
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    with pytest.raises(BundleError, match="not JSON"):
        read_path(deep)


def test_a_device_that_never_ends_is_refused() -> None:
    with pytest.raises(BundleError, match="larger than"):
        read_path(Path("/dev/zero"))


def test_words_that_look_like_hosts_and_are_none() -> None:
    assert notes.hosts_in("Xid79 on rank3 of job12, GPU 4, node gn[01-02] and dgx-a100-07") == (
        "gn01",
        "gn02",
        "dgx-a100-07",
    )


def test_a_whole_case_is_taken_too() -> None:
    (scene,) = read_case({"id": "A99", "expected": {}, "input": {"last_step": 3}})
    assert scene.case.last_step == 3
    assert Fields.of({"a": None}, "x").whole("a") is None
