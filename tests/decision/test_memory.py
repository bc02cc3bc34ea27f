"""What earlier attempts and other jobs said: how it is weighed beside the present evidence, and what it may not do."""

from dataclasses import replace
from typing import Any

import pytest

from controller.decision.assess import assess
from controller.decision.assessment import Assessment
from controller.decision.attempt_facts import EndedAttempt
from controller.decision.diagnosis import ASK, REQUEUE, diagnose
from controller.decision.evidence import CONTROLLER, JOB, SENSOR, Case, Evidence
from controller.decision.facts import Spent, SubjectFacts
from controller.decision.findings import PROCESS_DIED, USER_ERROR, Finding
from controller.decision.live_case import case_of
from controller.decision.policy import Limits, Policy
from controller.decision.propose import propose
from tests.decision.given import knowledge
from tests.decision.quiet import NOW, POLICY, attempt, rank_exit, slurm_job, subject

pytestmark = pytest.mark.pure
KNOWING = replace(POLICY, knowledge=knowledge())
RUN = "tj-000000000001"
NODES = ("gpu1", "gpu2", "gpu3")
HOUR = 3600.0


def said(code: str, node: str = "gpu2", origin: str = JOB, age_s: float = 6.0, **attrs: Any) -> Evidence:
    raw = f"{code} on {node} {sorted(attrs.items())}"
    run = RUN if origin == JOB else ""
    return Evidence(
        f"{raw}/{age_s}"[:64], code, "process", "test", origin, raw, NOW - age_s, node, attrs=attrs, job=run
    )


def remembered(of: str, job: str = "another", node: str = "gpu2", age_s: float = HOUR, **attrs: Any) -> Evidence:
    raw = f"job {job} on {node}: {of}"
    told = {"of": of, "job": job, "error": of, **attrs}
    return Evidence(
        f"h/{raw}/{age_s}"[:64], "history.error", "node", "history", CONTROLLER, raw, NOW - age_s, node, attrs=told
    )


def weighed(*evidence: Evidence, policy: Policy = KNOWING, **changes: Any) -> Assessment:
    changes = {"attempt": attempt(nodes=NODES, step=200), **changes}
    return assess(case_of(subject(evidence=evidence, **changes), NOW, policy), knowledge())


# --- strikes: another job's word ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["cuda.ecc", "cuda.nvlink", "xid.79"])
@pytest.mark.parametrize("before", ["cuda.ecc", "xid.48"])
def test_another_jobs_word_on_the_hardware_agrees_with_this_ones(code: str, before: str) -> None:
    alone = weighed(said(code))
    assert (alone.drain, alone.withheld, alone.exclude) == ((), ("gpu2",), ("gpu2",))
    voice = remembered(before)
    agreed = weighed(said(code), voice)
    assert (agreed.drain, agreed.withheld, agreed.exclude) == (("gpu2",), (), ("gpu2",))
    assert voice.id in agreed.proof, "the second voice is shown"


@pytest.mark.parametrize(
    "voice",
    [
        remembered("cuda.ecc", job=RUN),
        remembered("cuda.ecc", node="gpu1"),
        remembered("cuda.ecc", age_s=25 * HOUR),
        remembered("cuda.illegal_access"),
        remembered("xid.31"),
        remembered("slurm.node_state"),
        remembered("nobody.knows"),
    ],
)
def test_what_is_no_second_voice_holds_nothing(voice: Evidence) -> None:
    found = weighed(said("cuda.ecc"), voice)
    assert (found.drain, found.withheld) == ((), ("gpu2",))


def test_the_same_job_is_the_same_voice_however_often_it_says_it() -> None:
    own = [remembered("cuda.ecc", job=RUN, age_s=hours * HOUR) for hours in (1, 2, 3)]
    assert weighed(said("cuda.ecc"), *own).drain == ()


def test_other_jobs_of_the_same_owner_are_the_same_voice() -> None:
    """One user, several runs: a program that is wrong, or lies, does so in all of them."""
    own = [remembered("cuda.ecc", job=f"another{n}", owner="ada", own=True) for n in range(3)]
    found = weighed(said("cuda.ecc"), *own)
    assert (found.drain, found.withheld) == ((), ("gpu2",))
    assert weighed(said("cuda.ecc"), *own, remembered("cuda.ecc", owner="eve")).drain == ("gpu2",)


def test_two_jobs_of_one_stranger_do_not_hold_the_node_of_a_run_that_hangs() -> None:
    hung = said("progress.stalled")
    strangers = [remembered("cuda.ecc", job=f"another{n}", owner="eve") for n in range(3)]
    assert weighed(hung, *strangers).drain == ()
    assert weighed(hung, *strangers, remembered("cuda.ecc", job="third", owner="bob")).drain == ("gpu2",)


def test_how_long_a_strike_counts_is_policy() -> None:
    voice = remembered("cuda.ecc", age_s=2 * HOUR)
    short = replace(KNOWING, limits=Limits(strike_memory_s=HOUR))
    assert weighed(said("cuda.ecc"), voice).drain == ("gpu2",)
    assert weighed(said("cuda.ecc"), voice, policy=short).drain == ()


def test_a_soft_sign_is_confirmed_only_by_the_same_one() -> None:
    """A strong code twice within a day is a fault; whether it holds the node is for another job to say."""
    strong = said("xid.94", number=94, pci="0000:9b:00")
    again: dict[str, Any] = {"pci": "0000:9b:00"}
    assert weighed(strong).withheld == ()
    assert weighed(strong, remembered("xid.94", job=RUN, **again)).withheld == ("gpu2",)
    assert weighed(strong, remembered("xid.94", **again)).drain == ("gpu2",)


def test_a_code_that_nobody_can_place_is_a_strike_and_the_second_one_keeps_the_job_away() -> None:
    one = weighed(said("xid.109", origin=SENSOR, number=109))
    assert (one.exclude, "one strike" in one.node_actions["gpu2"]) == ((), True)
    two = weighed(said("xid.109", origin=SENSOR, number=109), remembered("xid.109"))
    assert (two.verdict, two.exclude, two.drain) == ("unknown", ("gpu2",), ())


def complaint(reporter: str, peer: str) -> Evidence:
    return said("nccl.ib_completion", reporter, status=12, peer=peer)


def test_reporters_of_other_jobs_count_and_the_jobs_own_earlier_words_do_not_hold() -> None:
    here = [complaint("gpu1", "gpu2"), complaint("gpu3", "gpu2")]
    other = remembered("nccl.ib_completion", node="gpu4", peer="gpu2")
    own = remembered("nccl.ib_completion", job=RUN, node="gpu4", peer="gpu2")
    case: dict[str, Any] = {"nodes": {}, "attempt": attempt(nodes=(*NODES, "gpu4"), step=200)}
    assert weighed(*here, **case).drain == ()
    assert weighed(*here, other, **case).drain == ("gpu2",)
    found = weighed(*here, own, **case)
    assert (found.drain, found.withheld) == ((), ("gpu2",))


# --- earlier attempts of the same job -------------------------------------------------------------------------------


def ended(*evidence: Evidence, generation: int = 1, step: int = 90, verdict: str = "") -> EndedAttempt:
    return EndedAttempt(generation, 0, step, "process_died", NODES, verdict, evidence)


def test_the_verdict_and_the_lines_of_earlier_attempts_reach_the_case() -> None:
    line = complaint("gpu1", "gpu2")
    case = case_of(subject(attempts_before=(ended(line, verdict="fabric"),)), NOW, KNOWING)
    assert [(p.verdict, p.evidence, p.last_step) for p in case.attempts] == [("fabric", (line,), 90)]


def test_a_third_node_in_a_later_attempt_names_the_one_that_is_in_both_pairs() -> None:
    first, now = complaint("gpu1", "gpu2"), complaint("gpu3", "gpu2")
    assert weighed(now).suspect_nodes == ("gpu2", "gpu3")
    found = weighed(now, attempts_before=(ended(first),))
    assert (found.suspect_nodes, found.exclude, found.drain) == (("gpu2",), ("gpu2",), ())


def test_an_error_that_moves_to_another_node_is_not_blamed_on_the_first() -> None:
    """The same illegal access on the same place of one GPU, twice in a row, is the GPU; elsewhere the program."""
    place: dict[str, Any] = {"number": 31, "pci": "0000:9b:00", "location": "GPC 2, TPC 4"}
    now = said("xid.31", origin=SENSOR, **place)
    same = ended(said("xid.31", origin=SENSOR, age_s=HOUR, **place))
    moved = ended(said("xid.31", "gpu1", origin=SENSOR, age_s=HOUR, **place))
    assert (weighed(now, attempts_before=(same,)).verdict, weighed(now, attempts_before=(moved,)).verdict) == (
        "gpu_hardware",
        "user_code",
    )


def test_what_was_remembered_in_another_order_says_the_same() -> None:
    items = [said("cuda.ecc"), remembered("cuda.ecc"), remembered("xid.48", job="third"), said("cuda.ecc", "gpu1")]
    assert weighed(*items) == weighed(*reversed(items))


def test_a_bundle_forgets_nothing() -> None:
    """It holds what somebody chose to put there."""
    old = remembered("cuda.ecc", age_s=900 * HOUR)
    case = Case(evidence=(said("cuda.ecc"), old), run_id=RUN, nodes=NODES)
    assert assess(case, knowledge()).drain == ("gpu2",)


# --- how often a verdict may be requeued ----------------------------------------------------------------------------


def raised(**changes: Any) -> SubjectFacts:
    """A traceback, on an attempt that had told no step yet: nobody can say that it ended at the same place."""
    line = said("python.exception", type="ValueError", text="bad sample")
    changes = {"attempt": attempt(step=None, exits=(rank_exit(signal=None, exit_code=1),)), **changes}
    return subject(evidence=(line,), attempts_before=(ended(step=100),), **changes)


def judged(facts: SubjectFacts) -> Any:
    return diagnose(facts, Finding(USER_ERROR, "rank 2 ended", ranks=(2,), fault_at=NOW - 5.0), NOW, KNOWING)


def test_a_verdict_is_requeued_as_often_as_it_says() -> None:
    assert judged(raised()).remedy == REQUEUE
    again = judged(raised(spent=Spent(of_kind={"user_code": 1})))
    assert again.remedy == ASK
    assert again.stop == "user_code is requeued at most once without progress, and was requeued 1 of 1 already"


def test_other_kinds_do_not_count_against_it() -> None:
    assert judged(raised(spent=Spent(process=3, of_kind={"host_oom": 2}))).remedy == REQUEUE


def test_the_limit_is_the_sentence_that_a_person_reads() -> None:
    policy = replace(KNOWING, budget=replace(KNOWING.budget, user=9))
    facts = raised(slurm=slurm_job(base="FAILED", exit_code=1), spent=Spent(user=1, of_kind={"user_code": 1}))
    proposal = propose(facts, NOW, policy)
    assert proposal.ask is not None and "at most once" in proposal.ask
    assert proposal.charge == "none"
    assert propose(replace(facts, spent=Spent()), NOW, policy).ask is None


def test_a_verdict_without_a_limit_has_the_budgets_only() -> None:
    facts = subject(evidence=(said("xid.79", origin=SENSOR, number=79),), spent=Spent(of_kind={"gpu_hardware": 5}))
    found = diagnose(facts, Finding(PROCESS_DIED, "rank 2 died", fault_at=NOW), NOW, KNOWING)
    assert (found.remedy, found.stop) == (REQUEUE, "")
