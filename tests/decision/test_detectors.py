"""What names a culprit, and what must not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decision.detectors import detect
from controller.decision.facts import LIVING_OUTCOMES, NodeFact, ProbeFact, SubjectFacts
from controller.decision.findings import Finding, Suspicion
from tests.decision.quiet import (
    NOW,
    POLICY,
    agent,
    attempt,
    gpu2_lost,
    probe,
    rank_exit,
    slurm_job,
    subject,
)

pytestmark = pytest.mark.pure


def found(facts: SubjectFacts) -> Finding | Suspicion | None:
    return detect(facts, NOW, POLICY)


def cause(facts: SubjectFacts) -> str | None:
    finding = found(facts)
    return finding.cause if isinstance(finding, Finding) else None


def test_a_quiet_world_finds_nothing() -> None:
    assert found(subject()) is None


def test_two_vantage_points_and_a_control_name_the_lost_node() -> None:
    finding = found(gpu2_lost())
    assert isinstance(finding, Finding)
    assert (finding.cause, finding.suspects) == ("node_lost", ("gpu2",))
    assert {(c.source, c.stance) for c in finding.clues} >= {
        ("probe/controller", "accuses"),
        ("probe/gpu1", "accuses"),
        ("probe/controller", "clears"),
    }
    assert finding.last_good_at == NOW - 5.0


def test_slurmctld_is_a_second_vantage_point() -> None:
    nodes = dict(subject().nodes) | {"gpu2": NodeFact("gpu2", "MIXED", frozenset({"NOT_RESPONDING"}))}
    facts = gpu2_lost(probes=gpu2_lost().probes[:2], nodes=nodes)
    assert cause(facts) == "node_lost"


@pytest.mark.parametrize("silent_s", [0.0, 1.0, 2.0, 2.9])
def test_a_short_silence_is_no_finding_whatever_the_probes_say(silent_s: float) -> None:
    facts = gpu2_lost(attempt=attempt(agents=(agent("gpu1"), agent("gpu2", silent_s))))
    assert cause(facts) is None
    assert silent_s > 1.8 or found(subject(attempt=facts.attempt)) is None, "not even a probe"


def test_a_longer_silence_asks_for_probes_beside_a_control_and_a_witness() -> None:
    suspicion = found(subject(attempt=attempt(agents=(agent("gpu1"), agent("gpu2", 4.0)))))
    assert isinstance(suspicion, Suspicion)
    assert (suspicion.nodes, suspicion.witnesses) == (("gpu2",), ("gpu1",))
    assert set(suspicion.controls) == {"gpu1", "gpu3"}


def test_the_controllers_own_cut_blames_nobody() -> None:
    """Every agent silent, every probe of the controller fails, no peer can speak to us."""
    everybody = tuple(probe("controller", n, "timeout", 1.0) for n in ("gpu1", "gpu2", "gpu3", "gpu4"))
    facts = subject(attempt=attempt(agents=(agent("gpu1", 30.0), agent("gpu2", 30.0))), probes=everybody)
    assert isinstance(found(facts), Suspicion)


@pytest.mark.parametrize("outcome", sorted(LIVING_OUTCOMES))
@pytest.mark.parametrize("vantage", ["controller", "gpu1"])
def test_a_host_that_answers_anybody_is_not_lost(outcome: str, vantage: str) -> None:
    facts = gpu2_lost()
    assert cause(replace(facts, probes=(*facts.probes, probe(vantage, "gpu2", outcome, 0.1)))) is None


@pytest.mark.parametrize("flag", ["MAINTENANCE", "REBOOT_ISSUED", "POWERING_DOWN"])
def test_expected_silence_stops_the_timers(flag: str) -> None:
    nodes = dict(subject().nodes) | {"gpu2": NodeFact("gpu2", "MIXED", frozenset({flag}))}
    assert found(gpu2_lost(nodes=nodes)) is None


@pytest.mark.parametrize("agents", [True, False], ids=["with agents", "without"])
def test_a_node_that_is_down_for_its_reboot_has_not_failed(agents: bool) -> None:
    """S10; the same node DOWN without a reboot, or with one that was only asked for, has."""
    changes = {} if agents else {"attempt": attempt(agents=(), world_size=None)}
    for flag, expected in (("REBOOT_ISSUED", None), ("REBOOT_REQUESTED", "node_down"), ("DRAIN", "node_down")):
        nodes = dict(subject().nodes) | {"gpu2": NodeFact("gpu2", "DOWN", frozenset({"NOT_RESPONDING", flag}))}
        assert cause(gpu2_lost(nodes=nodes, **changes)) == expected


def test_an_agent_that_ended_is_not_silent() -> None:
    facts = gpu2_lost(attempt=attempt(agents=(agent("gpu1"), agent("gpu2", 5.0, state="ended"))))
    assert found(facts) is None


def test_old_probes_prove_nothing() -> None:
    facts = gpu2_lost()
    old = tuple(replace(p, at=NOW - 60) for p in facts.probes)
    assert isinstance(found(replace(facts, probes=old)), Suspicion)


outcomes = st.sampled_from(["open", "refused", "timeout", "unreachable"])
probes = st.lists(
    st.builds(
        ProbeFact,
        vantage=st.sampled_from(["controller", "gpu1", "gpu3"]),
        node=st.sampled_from(["gpu1", "gpu2", "gpu3"]),
        outcome=outcomes,
        at=st.floats(NOW - 20, NOW),
    ),
    max_size=8,
)


@given(probes=probes, silences=st.tuples(st.floats(0, 60), st.floats(0, 60)))
def test_lost_always_rests_on_its_proof(probes: list[ProbeFact], silences: tuple[float, float]) -> None:
    """Whatever is thrown at it: a node is lost only with a silent agent, two silent vantage points and a control."""
    agents = (agent("gpu1", silences[0]), agent("gpu2", silences[1]))
    finding = found(subject(attempt=attempt(agents=agents), probes=tuple(probes)))
    if not isinstance(finding, Finding):
        return
    for name in finding.suspects:
        last = next(a.received_at for a in agents if a.node == name)
        about = [p for p in probes if p.node == name and p.at > last and NOW - p.at <= POLICY.limits.probe_fresh_s]
        assert NOW - last > POLICY.limits.agent_silent_s
        assert not any(p.outcome in LIVING_OUTCOMES for p in about)
        assert {"controller"} < {p.vantage for p in about if p.silent}
        assert any(
            p.vantage == "controller" and p.node not in finding.suspects and p.outcome in LIVING_OUTCOMES
            for p in probes
        )


def test_slurm_down_is_enough() -> None:
    nodes = dict(subject().nodes) | {"gpu2": NodeFact("gpu2", "DOWN", reason="Not responding")}
    finding = found(subject(nodes=nodes))
    assert isinstance(finding, Finding)
    assert (finding.cause, finding.suspects) == ("node_down", ("gpu2",))


def test_without_agents_a_node_that_does_not_respond_needs_the_controllers_probe_too() -> None:
    nodes = dict(subject().nodes) | {"gpu2": NodeFact("gpu2", "MIXED", frozenset({"NOT_RESPONDING"}))}
    plain = subject(attempt=attempt(agents=(), world_size=None), nodes=nodes)
    assert isinstance(found(plain), Suspicion)
    silent, control = probe("controller", "gpu2", "timeout"), probe("controller", "gpu3", "open")
    assert cause(replace(plain, probes=(silent, control))) == "node_lost"
    assert cause(replace(plain, probes=(silent,))) is None
    assert found(replace(plain, probes=(probe("controller", "gpu2", "refused"), control))) is None


@pytest.mark.parametrize("base", ["NODE_FAIL", "BOOT_FAIL"])
def test_node_fail_without_a_bad_node_names_none(base: str) -> None:
    finding = found(subject(slurm=slurm_job(base=base)))
    assert isinstance(finding, Finding)
    assert (finding.cause, finding.suspects) == ("node_failed", ())


def ended(**changes: object) -> SubjectFacts:
    agents = (agent("gpu1", state="ending"), agent("gpu2", state="ending"))
    return subject(attempt=attempt(agents=agents, **changes), slurm=slurm_job(base="FAILED", exit_code=75))


def test_a_killed_rank_is_a_process_that_died_and_the_survivors_are_not_blamed() -> None:
    survivor = rank_exit(0, "gpu1", exit_code=1, signal=None, at=NOW - 4.8)
    finding = found(ended(exits=(survivor, rank_exit())))
    assert isinstance(finding, Finding)
    assert (finding.cause, finding.ranks, finding.suspects) == ("process_died", (2,), ())


def test_a_traceback_is_the_users() -> None:
    assert cause(ended(exits=(rank_exit(exit_code=1, signal=None),))) == "user_error"


@pytest.mark.parametrize(
    "change",
    [
        {"torn_down": True},
        {"meaning": "superseded", "exit_code": 76, "signal": None},
        {"exit_code": 0, "signal": None},
        {"at": NOW - 0.5},
    ],
    ids=["torn down by its agent", "superseded", "ended well", "too fresh"],
)
def test_ends_that_are_no_fault_yet(change: dict[str, object]) -> None:
    facts = subject(attempt=attempt(exits=(rank_exit(**change),)))
    assert found(facts) is None


def test_a_cancelled_job_is_no_fault() -> None:
    assert found(subject(attempt=attempt(exits=(rank_exit(),)), slurm=slurm_job(base="CANCELLED"))) is None


def test_deaths_wait_for_a_silent_agent() -> None:
    """gpu2 died and took gpu1's ranks with it: the node is the story, not the process."""
    facts = subject(
        attempt=attempt(
            agents=(agent("gpu1", state="ending"), agent("gpu2", 2.5)), exits=(rank_exit(0, "gpu1", at=NOW - 3),)
        )
    )
    assert cause(facts) is None


def test_failed_checks_win() -> None:
    assert cause(ended(checks_failed=("random_state",), exits=(rank_exit(),))) == "verification_failed"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"base": "TIMEOUT"}, "time_limit"),
        ({"base": "FAILED", "exit_code": 1}, "user_error"),
        ({"base": "FAILED", "exit_code": 75, "exit_meaning": "attempt_failed"}, "process_died"),
        ({"base": "FAILED", "exit_code": 77, "exit_meaning": "verification_failed"}, "verification_failed"),
        ({"base": "OUT_OF_MEMORY", "exit_code": 0}, "user_error"),
    ],
)
def test_slurms_word_on_a_job_without_agents(changes: dict[str, object], expected: str) -> None:
    assert cause(subject(attempt=attempt(agents=(), world_size=None), slurm=slurm_job(**changes))) == expected
