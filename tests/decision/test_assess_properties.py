"""What no evidence may change: order, duplicates, consequences; and what a drain always needs."""

from dataclasses import replace

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from controller.decision.assess import assess
from controller.decision.assessment import Assessment
from controller.decision.evidence import CONTROLLER, JOB, SENSOR, SLURM, Case, Evidence
from controller.decision.meanings import VERDICTS
from tests.decision.given import cases_of, given, knowledge

pytestmark = pytest.mark.pure
CASES = {f"{name} {scene}": case for name in given() for scene, case in cases_of(given()[name]["input"]).items()}
NODES = ("gn1", "gn2", "gn3", "gn4")
names = st.sampled_from(sorted(CASES))
few = settings(max_examples=150, deadline=None)

CASCADES = (
    ("nccl.remote_error", {"text": "remote process exited or there was a network error"}),
    ("nccl.ib_completion", {"status": 5, "vendor_error": 249, "peer": "gn77"}),
    ("slurm.connection", {"text": "Connection refused"}),
    ("slurm.aborted", {"text": "Job step aborted"}),
    ("xid.45", {"number": 45, "pci": "0000:9b:00"}),
    ("torchrun.closing", {"pid": 7, "signal": "SIGTERM"}),
    ("store.lost", {"text": "Connection reset by peer"}),
)
CODES = (
    *("xid.79", "xid.94", "xid.13", "xid.45", "xid.63", "xid.109", "xid.149", "sxid.20034", "gpu.missing", "cuda.ecc"),
    *("nccl.ib_completion", "nccl.ib_qp_timeout", "nccl.socket_error", "nccl.watchdog_timeout", "nccl.watchdog_status"),
    *(
        "gloo.peer_lost",
        "python.exception",
        "storage.io_error",
        "storage.stale",
        "oom.kill",
        "slurm.oom",
        "cuda.no_device",
    ),
    *("nic.link_down", "kernel.panic", "memory.uncorrected", "slurm.time_limit", "slurm.preempted", "process.exit"),
    *(
        "loss.not_finite",
        "history.error",
        "slurm.node_failure",
        "slurm.launch_failed",
        "disk.error",
        "progress.stalled",
    ),
    *(
        "sensor.reader_failed",
        "nobody.knows",
        "cuda.out_of_memory",
        "port.in_use",
        "torchrun.failure",
        "gpu.recovery_action",
    ),
)
KEYS = (
    *("number", "pci", "fatal", "peer", "status", "signal", "exit_code", "of", "hours_ago", "job", "host", "errno"),
    *("group", "enqueued", "completed", "work", "type", "tasks", "gpu_uuid", "action", "kind", "step", "percent"),
)
values = st.one_of(
    st.integers(-3, 800), st.booleans(), st.sampled_from(["gn1", "10.8.0.2", "", "none", "x"]), st.floats()
)
attrs = st.dictionaries(
    st.sampled_from(KEYS),
    values,
    max_size=5,
)
pieces = st.builds(
    Evidence,
    id=st.uuids().map(str),
    code=st.sampled_from(CODES),
    layer=st.sampled_from(["kernel", "gpu", "network", "library", "process", "slurm"]),
    source=st.just("test"),
    origin=st.sampled_from([SENSOR, SLURM, JOB]),
    raw=st.text(max_size=12),
    at=st.none() | st.floats(0, 2e9),
    node=st.none() | st.sampled_from(["gn1", "gn2", "gn3", "GN1.cluster.local", "10.8.0.2", ""]),
    rank=st.none() | st.integers(0, 8),
    attrs=attrs,
)
made = st.builds(
    Case,
    evidence=st.lists(pieces, max_size=12).map(tuple),
    nodes=st.sampled_from([(), ("gn1",), ("gn1", "gn2", "gn3")]),
    rank_nodes=st.sampled_from([{}, {0: "gn1", 1: "gn2", 2: "gn3"}]),
    addresses=st.sampled_from([{}, {"10.8.0.2": "gn2"}]),
    still_training=st.booleans(),
    finished=st.booleans(),
    last_step=st.none() | st.integers(0, 9),
    same_before=st.integers(0, 3),
    trusted=st.booleans(),
    cancelled_by_user=st.booleans(),
)


def told(case: Case) -> Assessment:
    return assess(case, knowledge())


def action(found: Assessment) -> tuple[object, ...]:
    return found.suspect_nodes, found.drain, found.exclude, found.withheld


@few
@hypothesis_given(names, st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_nothing(name: str, random: object) -> None:
    case = CASES[name]
    mixed = list(case.evidence)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert told(replace(case, evidence=tuple(mixed))) == told(case)


@few
@hypothesis_given(made, st.randoms(use_true_random=False))
def test_nor_does_it_for_any_evidence(case: Case, random: object) -> None:
    mixed = list(case.evidence)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert repr(told(replace(case, evidence=tuple(mixed)))) == repr(told(case))


@few
@hypothesis_given(names, st.data())
def test_what_comes_twice_counts_once(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    again = data.draw(st.lists(st.sampled_from(case.evidence), max_size=4))
    twice = tuple(replace(item, id=f"again-{i}-{item.id}") for i, item in enumerate(again))
    assert told(replace(case, evidence=(*case.evidence, *twice))) == told(case)


@few
@hypothesis_given(names, st.sampled_from(CASCADES), st.sampled_from(["gn77", "gn01", "gn31", "gn12"]))
def test_a_consequence_changes_no_suspect(name: str, cascade: tuple[str, dict[str, str | int]], node: str) -> None:
    case = CASES[name]
    code, given_attrs = cascade
    line = Evidence("late", code, "library", "job_log", JOB, "a consequence", node=node, attrs=given_attrs)
    assert action(told(replace(case, evidence=(*case.evidence, line)))) == action(told(case))


@pytest.mark.parametrize("name", sorted(CASES))
def test_without_a_line_that_is_no_proof_nobody_else_is_drained(name: str) -> None:
    case = CASES[name]
    whole = told(case)
    for item in case.evidence:
        if item.id not in whole.proof:
            less = told(replace(case, evidence=tuple(e for e in case.evidence if e is not item)))
            assert set(less.drain) <= set(whole.drain)


@pytest.mark.parametrize("name", sorted(CASES))
def test_clocks_that_are_a_second_apart_blame_nobody_else(name: str) -> None:
    case = CASES[name]
    moved = tuple(
        item if item.at is None else replace(item, at=item.at + (0.9 if len(item.node or "") % 2 else -0.9))
        for item in case.evidence
    )
    assert action(told(replace(case, evidence=moved))) == action(told(case))


@few
@hypothesis_given(made)
def test_whatever_comes_it_answers_and_keeps_the_law(case: Case) -> None:
    found = told(case)
    assert found.verdict in VERDICTS
    assert found.confidence in ("high", "medium", "low")
    assert found.budget in ("infra", "user", "none")
    assert found.why
    assert set(found.drain) <= set(found.exclude)
    assert set(found.withheld) <= set(found.exclude)
    assert not set(found.drain) & set(found.withheld)
    assert not (case.finished and found.requeue is True and not found.drain and found.verdict == "none")


@few
@hypothesis_given(made)
def test_the_jobs_own_word_drains_nobody_unless_it_is_trusted(case: Case) -> None:
    own = tuple(replace(item, origin=JOB) for item in case.evidence)
    assert told(replace(case, evidence=own, trusted=False)).drain == ()


@few
@hypothesis_given(made)
def test_a_checker_that_fails_accuses_nobody(case: Case) -> None:
    broken = Evidence("b", "sensor.reader_failed", "node", "sensor", SENSOR, "no such file", node="gn1")
    blind = Evidence("c", "gpu.unreadable", "gpu", "nvml", SENSOR, "library missing", node="gn1")
    assert action(told(replace(case, evidence=(*case.evidence, broken, blind)))) == action(told(case))


def _lines(case: Case, ids: tuple[str, ...]) -> set[tuple[object, ...]]:
    return {(e.raw, e.node, e.rank) for e in case.evidence if e.id in ids and e.raw}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_line_is_proof_or_consequence_and_not_both(name: str) -> None:
    case, found = CASES[name], told(CASES[name])
    assert not _lines(case, found.proof) & _lines(case, (*found.cascade, *found.clears))


@few
@hypothesis_given(made)
def test_nor_is_it_both_for_any_evidence(case: Case) -> None:
    found = told(case)
    roles = [set(found.proof), set(found.cascade), set(found.clears)]
    assert len(set.union(*roles)) == sum(map(len, roles))


@few
@hypothesis_given(made, st.sampled_from(["xid.79", "cuda.ecc", "nccl.ib_completion", "memory.uncorrected"]))
def test_nor_does_what_the_job_itself_said_before(case: Case, of: str) -> None:
    """The controller remembers it, of every node, and it is still the job's own word."""
    own = tuple(replace(item, origin=JOB, job="this") for item in case.evidence if item.code != "history.error")
    attrs = {"of": of, "job": "this", "peer": "gn2"}
    said = (Evidence(n, "history.error", "node", "history", CONTROLLER, n, node=n, attrs=attrs) for n in NODES)
    assert told(replace(case, evidence=(*own, *said), run_id="this", trusted=False)).drain == ()
