"""Facts that were stored with a decision come back as they were, whatever version stored them."""

import json

import pytest

from controller.decision.attempt_facts import EndedAttempt
from controller.decision.codec import subject_from_json
from controller.decision.evidence import SENSOR, Evidence
from controller.decision.facts import PastFault
from controller.decision.findings import clue_of
from tests.decision.quiet import NOW, gpu2_lost, subject

pytestmark = pytest.mark.pure

XID = Evidence(
    "sign:7",
    "xid.79",
    "kernel",
    "kernel",
    SENSOR,
    "NVRM: Xid (PCI:0000:9b:00): 79",
    at=NOW - 5.5,
    node="gpu2",
    attrs={"number": 79, "pci": "0000:9b:00", "fatal": True},
    count=2,
    received_at=NOW - 1,
)
NEW_KEYS = ("evidence", "evidence_left_out", "rank_nodes", "addresses", "gpus", "unreadable", "read_clean")


def test_evidence_and_what_is_known_around_it_come_back() -> None:
    known = subject(
        evidence=(XID,),
        evidence_left_out=3,
        rank_nodes={0: "gpu1", 12: "gpu2"},
        addresses={"10.78.0.2": "gpu2"},
        gpus={"gpu2": frozenset({"GPU-b", "GPU-a"})},
        unreadable=frozenset({"kernel"}),
        read_clean=frozenset({"gpu1"}),
        last_fault=PastFault(4, "process_died", "resolved", ("gpu1", "gpu2"), (), NOW - 60, NOW - 58, NOW - 9),
        attempts_before=(EndedAttempt(1, 0, 100, "process_died", ("gpu1", "gpu2")),),
    )
    assert subject_from_json(json.loads(json.dumps(known.to_json()))) == known


def test_facts_of_an_older_version_still_decode() -> None:
    """What was stored before there was any evidence: the keys are absent, and unknown is what they mean."""
    old = json.loads(json.dumps(gpu2_lost().to_json()))
    for key in (*NEW_KEYS, "last_fault", "attempts_before"):
        del old[key]
    for node in old["nodes"].values():
        del node["answered_at"]
    assert subject_from_json(old) == gpu2_lost()


def test_a_clue_keeps_where_it_came_from() -> None:
    clue = clue_of(XID, "cascade", NOW)
    assert (clue.ref, clue.origin, clue.subject, clue.at, clue.count) == ("sign:7", SENSOR, "gpu2", NOW - 5.5, 2)
    assert (clue.stance, clue.received_at) == ("cascade", NOW - 1)
