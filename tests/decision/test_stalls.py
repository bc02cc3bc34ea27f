"""When a run stands still for longer than it ever does, and which rank the others wait for."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decision import stalls
from controller.decision.attempt_facts import LearnedPace, RankProgress
from controller.decision.detectors import detect
from controller.decision.diagnosis import diagnose
from controller.decision.facts import NodeFact, SubjectFacts
from controller.decision.findings import HANG, Finding
from controller.decision.policy import Policy, Stall
from controller.decision.propose import propose
from tests.decision.quiet import NOW, POLICY, agent, attempt, slurm_job, subject

pytestmark = pytest.mark.pure

STEPS = LearnedPace(count=500, median_s=0.5, longest_s=4.0)
LEARNED = {"step": STEPS, "first_step": LearnedPace(1, 60.0, 60.0), "startup": LearnedPace(1, 20.0, 20.0)}
LONG = 400.0


def rank(number: int, age_s: float = LONG, *, beat_age_s: float = 0.1, **changes: Any) -> RankProgress:
    quiet = RankProgress(
        rank=number,
        node="gpu1" if number < 2 else "gpu2",
        state="running",
        heard_at=NOW - 0.5,
        phase="training",
        step=100,
        progressed_at=NOW - age_s,
        beat_at=NOW - 0.5 - beat_age_s,
    )
    return replace(quiet, **changes)


def world(*ranks: RankProgress, learned: dict[str, LearnedPace] | None = None, **changes: Any) -> SubjectFacts:
    """Four ranks that stood still LONG ago; `ranks` replace those of the same number."""
    own = {number: rank(number) for number in range(4)} | {r.rank: r for r in ranks}
    known = LEARNED if learned is None else learned
    of_attempt = {"ranks": tuple(own.values()), "learned": known, "launched_at": NOW - 9000.0}
    of_attempt |= changes.pop("attempt", {})
    return subject(attempt=attempt(**of_attempt), **changes)


def everybody(age_s: float, **changes: Any) -> tuple[RankProgress, ...]:
    return tuple(rank(number, age_s, **changes) for number in range(4))


def hang(facts: SubjectFacts, policy: Policy = POLICY) -> Finding | None:
    found = detect(facts, NOW, policy)
    assert found is None or isinstance(found, Finding)
    assert found is None or found.cause == HANG
    return found


# --- when ---------------------------------------------------------------------------------------------------------


def test_all_equal_is_a_stall_of_nobody() -> None:
    found = hang(world())
    assert found is not None and (found.ranks, found.suspects) == ((), ())
    assert "none is named" in found.reason
    assert found.fault_at == found.last_good_at == NOW - LONG
    (clue,) = found.clues
    assert (clue.code, clue.layer, clue.stance) == ("progress.stalled", "progress", "soft")


@pytest.mark.parametrize("age_s", [0.1, 30.0, 299.0, 309.0])
def test_within_the_learned_limit_and_the_time_for_other_signs(age_s: float) -> None:
    assert hang(world(*everybody(age_s))) is None


@pytest.mark.parametrize(
    ("phase", "changes"),
    [
        ("starting", {"step": 0}),
        ("loading", {"step": 0}),
        ("warming_up", {"step": 0}),
        ("training", {"step": 0}),
        ("saving", {}),
        ("evaluation", {}),
    ],
)
def test_what_was_never_seen_has_a_generous_limit(phase: str, changes: dict[str, Any]) -> None:
    """A first step that compiles for ten minutes, a save of twenty: nothing. Three hours: a stall."""
    assert hang(world(*everybody(1200.0, phase=phase, **changes), learned={})) is None
    assert hang(world(*everybody(10_000.0, phase=phase, **changes), learned={})) is not None


def test_a_long_evaluation_is_learned() -> None:
    ranks = everybody(3000.0, phase="evaluation")
    assert hang(world(*ranks, learned={"evaluation": LearnedPace(3, 2000.0, 2500.0)})) is None
    assert hang(world(*ranks, learned={"evaluation": LearnedPace(3, 60.0, 90.0)})) is not None


def test_others_may_wait_for_the_one_that_still_does_what_takes_long() -> None:
    assert hang(world(rank(0, 200.0, phase="evaluation"))) is None
    assert hang(world(rank(0, 200.0, phase="saving"), learned={"step": STEPS})) is None


def test_one_rank_that_goes_on_is_no_stall() -> None:
    assert hang(world(rank(3, 0.2, step=4000))) is None


def test_ranks_that_tell_no_steps_are_not_waited_for() -> None:
    """Only rank 0 calls run.step."""
    others = tuple(rank(number, 9000.0, step=0) for number in (1, 2, 3))
    assert hang(world(rank(0, 0.2), *others)) is None
    found = hang(world(rank(0), *(replace(r, progressed_at=NOW - 500.0) for r in others)))
    assert found is not None and found.ranks == ()


def test_a_program_that_tells_nothing_is_not_judged() -> None:
    silent = everybody(0.0, phase=None, step=None, progressed_at=None, beat_at=None)
    assert hang(world(*silent, learned={})) is None


def test_a_rank_that_never_began_is_named_where_others_did() -> None:
    late = rank(3, 0.0, phase=None, step=None, progressed_at=None, beat_at=None)
    found = hang(world(*everybody(4000.0, phase="loading", step=0)[:3], late, learned={}))
    assert found is not None and found.ranks == (3,)


@pytest.mark.parametrize(
    "facts",
    [
        world(slurm=slurm_job(base="SUSPENDED")),
        world(slurm=slurm_job(flags=frozenset({"STOPPED"}))),
        world(slurm=slurm_job(base="COMPLETING")),
        world(slurm=slurm_job(base="RUNNING", flags=frozenset({"COMPLETING"}))),
        world(slurm=slurm_job(restarts=1)),
        world(slurm=None),
        world(attempt={"finished": True}),
        world(attempt={"state": "ended"}),
        world(attempt={"counts_from": NOW - 100.0}),
        world(attempt={"ranks": ()}),
        world(*everybody(LONG, phase="finished")),
        world(*everybody(LONG, state="exited", exit_code=0)),
    ],
    ids=[
        "suspended",
        "stopped",
        "ending",
        "completing",
        "requeued",
        "hidden",
        "finished",
        "ended",
        "resumed",
        "no_ranks",
        "done",
        "exited",
    ],
)
def test_expected_silence(facts: SubjectFacts) -> None:
    assert hang(facts) is None


@pytest.mark.parametrize("flag", ["MAINTENANCE", "REBOOT_ISSUED", "POWERING_DOWN"])
def test_a_node_that_need_not_speak_stops_the_timers(flag: str) -> None:
    nodes = dict(subject().nodes) | {"gpu2": NodeFact("gpu2", "MIXED", frozenset({flag}))}
    assert hang(world(nodes=nodes)) is None


def test_an_agent_that_is_late_is_waited_for_and_then_its_ranks_are_named() -> None:
    """gpu2 answers probes, so the node is not lost."""
    for silent_s, named in ((10.0, None), (60.0, (2, 3))):
        facts = world(attempt={"agents": (agent("gpu1"), agent("gpu2", silent_s))})
        found = stalls.stalled(facts, NOW, POLICY)
        assert (found.ranks if found is not None else None) == named


# --- whose --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "named", "words"),
    [
        ((rank(2, LONG + 1, step=99),), (2,), "stands at step 99, the others at 100"),
        ((rank(2, step=98), rank(1, step=99)), (2,), "stands at step 98"),
        ((rank(1, beat_age_s=200.0),), (1,), "runs no Python thread"),
        ((rank(0, phase="evaluation"),), (0,), "is evaluation, the others are training"),
        ((*everybody(LONG, phase="saving")[:3], rank(3, LONG + 2)), (3,), "is training, the others are saving"),
        ((rank(3, LONG + 60),), (3,), "stood still 60 s before the others"),
        ((rank(3, state="exited", exit_code=0),), (3,), "has ended while the others wait"),
        ((rank(3, LONG + 4),), (), "none is named"),
        (everybody(LONG, beat_age_s=200.0), (), "none is named"),
        (tuple(rank(n, step=99) for n in range(3)), (), "none is named"),
        (tuple(rank(n, LONG + 60) for n in range(3)), (), "none is named"),
    ],
    ids=[
        "behind",
        "furthest",
        "beatless",
        "evaluating",
        "not_saving",
        "first",
        "ended",
        "jitter",
        "no_beats",
        "ahead",
        "most_first",
    ],
)
def test_the_one_that_differs(ranks: tuple[RankProgress, ...], named: tuple[int, ...], words: str) -> None:
    facts = world(*ranks, learned={"step": STEPS, "evaluation": STEPS, "saving": STEPS})
    found = hang(facts)
    assert found is not None and found.ranks == named and words in found.reason
    accused = {clue.subject for clue in found.clues if clue.stance == "accuses"}
    assert accused == {f"rank {number}" for number in named if facts_rank(facts, number).state == "running"}


def facts_rank(facts: SubjectFacts, number: int) -> RankProgress:
    assert facts.attempt is not None
    return next(r for r in facts.attempt.ranks if r.rank == number)


def test_of_two_ranks_the_one_behind_is_the_suspect_and_equals_are_not() -> None:
    pair = {"ranks": (rank(0), rank(1, step=99))}
    found = hang(world(attempt=pair))
    assert found is not None and found.ranks == (1,)
    found = hang(world(attempt={"ranks": (rank(0), rank(1))}))
    assert found is not None and found.ranks == ()


def test_a_stopped_heartbeat_is_a_sign_of_its_own() -> None:
    found = hang(world(rank(1, beat_age_s=200.0)))
    assert found is not None
    assert [c.code for c in found.clues] == ["progress.stalled", "progress.silent", "progress.stalled"]


@given(st.permutations(range(4)), st.integers(0, 3))
def test_the_order_of_reports_changes_nothing(order: list[int], behind: int) -> None:
    facts = world(rank(behind, step=99))
    assert facts.attempt is not None
    mixed = replace(facts, attempt=replace(facts.attempt, ranks=tuple(facts.attempt.ranks[i] for i in order)))
    found, again = hang(facts), hang(mixed)
    assert found is not None and again is not None
    assert found.ranks == again.ranks == (behind,)
    assert {c.raw for c in found.clues} == {c.raw for c in again.clues}


# --- what follows --------------------------------------------------------------------------------------------------


def test_a_hang_requeues_and_holds_nobody() -> None:
    facts = world(rank(2, step=99))
    found = hang(facts)
    assert found is not None
    verdict = diagnose(facts, found, NOW, POLICY)
    assert (verdict.hold, verdict.exclude, verdict.budget, verdict.remedy) == ((), (), "infrastructure", "requeue")
    proposal = propose(facts, NOW, POLICY)
    assert [plan.kind for plan in proposal.plans] == ["requeue_excluding", "notify"]
    assert proposal.plans[0].params["exclude"] == [] and proposal.attempt_outcome == "hung"


def test_evidence_is_there_while_other_signs_are_waited_for() -> None:
    facts = world(*everybody(305.0), rank(2, 305.0, step=99))
    assert hang(facts) is None
    pieces = stalls.evidence(facts, NOW, POLICY)
    assert [(p.code, p.rank, p.node, p.attrs["step"]) for p in pieces] == [
        ("progress.stalled", 2, "gpu2", 99),
        ("progress.stalled", None, None, 100),
    ]
    assert len({p.id for p in pieces}) == 2 and all(p.origin == "job" for p in pieces)


# --- limits --------------------------------------------------------------------------------------------------------


def test_the_policy_says_the_numbers() -> None:
    assert hang(world(*everybody(50.0)), replace(POLICY, stall=Stall(floor_s=20.0, settle_s=5.0))) is not None
    assert hang(world(), replace(POLICY, stall=Stall(floor_s=395.0, settle_s=10.0))) is None
