"""What `diagnose` says of an assessment: every key for scripts, the verdict first for people, nothing that can hurt."""

import json
from dataclasses import replace

import pytest

from controller.bundles import report as text
from controller.bundles.answer import OTHERS_TOLD, answer
from controller.bundles.report import report
from controller.decision.assessment import Assessment, NodeView
from controller.decision.evidence import CONTROLLER, JOB, SENSOR, SLURM, Case, Evidence
from controller.decision.meanings import VERDICTS, Knowledge, Meaning

pytestmark = pytest.mark.pure

KEYS = (
    *("verdict", "confidence", "suspect_nodes", "suspect_ranks", "suspect_rank", "suspect_gpu", "xid", "drain"),
    *("exclude", "requeue", "requeue_delay_s", "requeue_limit", "budget", "why", "drain_mode", "withheld"),
    *("node_actions", "follow_up", "notes", "per_node", "evidence"),
)
AT = 1772676700.0  # 2026-03-05 02:11:40
XID = Evidence("e1", "xid.79", "kernel", "kernel", SENSOR, "NVRM: Xid 79", AT, "gn31", count=1204, last_at=AT + 5)
LINE = Evidence("e2", "nccl.remote_error", "library", "job_log", JOB, "NCCL WARN remote process exited", AT - 9, rank=3)
IDLE = Evidence("e3", "slurm.node_state", "slurm", "slurm", SLURM, "gn30 IDLE", None, "gn30")
OLD = Evidence("e4", "history.error", "node", "history", CONTROLLER, "job 7: Xid 79", AT, "gn31")
FOUND = Assessment(
    verdict="gpu_hardware",
    confidence="high",
    why="its driver lost the GPU",
    suspect_nodes=("gn31",),
    suspect_ranks=(3, 4, 5, 9),
    suspect_gpu="0000:9b:00",
    xid=79,
    drain=("gn31",),
    exclude=("gn31",),
    budget="infra",
    proof=("e1",),
    cascade=("e2",),
    clears=("e3",),
)
CASE = Case(evidence=(XID, LINE, IDLE, OLD), nodes=("gn30", "gn31"), read_clean=frozenset({"gn31"}))
KNOWN = Knowledge({"xid.79": Meaning("xid.79", "kernel", "node", "hard", "gpu_hardware", "The GPU is off the bus")})


def told(case: Case = CASE, found: Assessment = FOUND) -> str:
    return report(case, found, KNOWN)


def test_the_answer_has_every_key_in_the_documented_order() -> None:
    said = answer(CASE, FOUND)
    assert tuple(said) == KEYS
    assert (said["suspect_rank"], said["suspect_gpu"], said["xid"], said["drain_mode"]) == (3, "0000:9b:00", 79, None)
    assert [(e["id"], e["role"], e["count"]) for e in said["evidence"]] == [
        ("e1", "proof", 1204), ("e2", "cascade", 1), ("e3", "clears", 1), ("e4", "context", 1),
    ]  # fmt: skip
    assert json.loads(json.dumps(said)) == said


def test_an_answer_about_nobody_has_the_same_keys() -> None:
    said = answer(Case(), Assessment("unknown", "low", "nothing was read"))
    assert tuple(said) == KEYS
    assert (said["suspect_nodes"], said["suspect_rank"], said["suspect_gpu"], said["evidence"]) == ([], None, None, [])


def test_actions_besides_are_told_by_node_and_as_a_sentence() -> None:
    found = replace(FOUND, node_actions={"gn10": "mark gn10 for GPU reset when idle", "gn02": "reboot"})
    assert answer(CASE, found)["drain_mode"] == "gn02: reboot; mark gn10 for GPU reset when idle"


def test_nodes_that_differ_have_their_own_verdict() -> None:
    found = replace(FOUND, per_node={"gn64": NodeView("unknown", xid=999, why="nobody knows 999")})
    expected = {"verdict": "unknown", "drain": False, "exclude": False, "xid": 999, "why": "nobody knows 999"}
    assert answer(CASE, found)["per_node"] == {"gn64": expected}
    assert "  gn64       unknown, Xid 999: nobody knows 999" in told(found=found)


def test_what_carries_the_verdict_is_never_left_out() -> None:
    lines = tuple(replace(LINE, id=f"c{k}") for k in range(OTHERS_TOLD + 5))
    found = replace(FOUND, cascade=tuple(e.id for e in lines), proof=("e1",))
    said = answer(Case(evidence=(*lines, XID)), found)
    assert [e["role"] for e in said["evidence"]].count("cascade") == OTHERS_TOLD
    assert said["evidence"][-1]["role"] == "proof"
    assert said["notes"] == ["5 more signs are not listed here"]


def test_the_report_opens_with_the_verdict_and_shows_its_proof() -> None:
    lines = told().splitlines()
    assert lines[0] == "A GPU is at fault: gn31, ranks 3-5,9, GPU 0000:9b:00, Xid 79."
    proof = lines.index("Proof")
    assert lines[proof + 1] == "  2026-03-05 02:11:40  kernel  gn31  x 1,204 in 5 s  (node's sensor)"
    assert lines[proof + 2 : proof + 4] == ["    NVRM: Xid 79", "    = The GPU is off the bus"]
    assert lines.index("What to do") < proof < lines.index("What clears") < lines.index("Not counted")
    assert "  1 consequence of it" in lines
    assert "  1 other sign that decided nothing: history.error" in lines
    assert "  no kernel log of gn30: unknown, not clean" in lines


def test_what_the_jobs_own_word_may_not_do_is_said_with_its_reason() -> None:
    said = told(found=replace(FOUND, drain=(), withheld=("gn31",)))
    assert "Drain      no node" in said and "trust_job_evidence" in said


@pytest.mark.parametrize(
    ("requeue", "more", "expected"),
    [
        (True, {}, "yes"),
        (True, {"requeue_delay_s": 60.0, "requeue_limit": 1}, "yes, after 60 s, at most 1 time"),
        (False, {}, "no"),
        (False, {"stop": "the same step failed twice"}, "no: the same step failed twice"),
        ("already done by Slurm", {}, "already done by Slurm"),
    ],
)
def test_the_requeue_is_told_in_words(requeue: bool | str, more: dict[str, object], expected: str) -> None:
    found = replace(FOUND, requeue=requeue, **more)  # type: ignore[arg-type]
    assert f"  Requeue    {expected}\n" in told(found=found)


def test_what_could_not_be_read_is_unknown() -> None:
    said = told(Case(unreadable=frozenset({"kernel"})), Assessment("unknown", "low", "no sign"))
    assert said.startswith("The evidence does not say what it was.")
    assert "the kernel log could not be read: unknown, not clean" in said
    assert "no sign was found in what was read" in said


def test_hostile_lines_neither_move_the_cursor_nor_outgrow_the_page() -> None:
    raw = "\x1b[2J\x07\u202eevil\ud800" + "x" * 3000 + "\nnext"
    node = "gn\x1b[31m" + "n" * 300
    items = tuple(replace(XID, id=f"h{k}", raw=raw, node=node) for k in range(3))
    found = replace(FOUND, why=raw, suspect_nodes=(node,), drain=(node,), proof=("h0",), cascade=("h1",))
    said = told(Case(evidence=items, nodes=(node,)), found)
    assert all(c.isprintable() for line in said.split("\n") for c in line)
    assert max(map(len, said.split("\n"))) <= text.WIDTH


def test_many_consequences_are_a_number_and_a_few_lines() -> None:
    lines = tuple(replace(LINE, id=f"c{k}", count=10) for k in range(200))
    said = told(Case(evidence=lines), replace(FOUND, cascade=tuple(e.id for e in lines)))
    assert "200 consequences (2,000 lines) of it" in said
    assert len(said.splitlines()) < 30


def test_colour_is_only_paint() -> None:
    painted = report(CASE, FOUND, KNOWN, text.coloured)
    assert painted != told()
    bare = painted
    for code in ("0", *text.STYLES.values()):
        bare = bare.replace(f"\x1b[{code}m", "")
    assert bare == told()


def test_every_verdict_has_its_sentence() -> None:
    assert set(text.VERDICTS) == set(VERDICTS)


def test_a_time_that_is_none_is_said() -> None:
    assert text.when(4 * 3600.0 + 63) == "04:01:03", "a clock without a day"
    assert text.when(None) == text.when(1e300) == text.when(float("nan")) == "no time"
