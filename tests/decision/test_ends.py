"""How a job ended when its agents cannot say it, or not all of them."""

import pytest

from controller.decision.propose import propose
from tests.decision.quiet import NOW, POLICY, agent, attempt, probe, rank_exit, slurm_job, subject

pytestmark = pytest.mark.pure

AN_AGENT_WAS_KILLED = (agent("gpu1", state="ended", silent_s=6.0), agent("gpu2", 7.0))


def cause(**slurm: object) -> str | None:
    facts = subject(
        attempt=attempt(agents=AN_AGENT_WAS_KILLED, exits=(rank_exit(0, "gpu1", signal=None, exit_code=1),)),
        slurm=slurm_job(**slurm),
        probes=(probe("controller", "gpu2", "open"),),
    )
    verdict = propose(facts, NOW, POLICY).verdict
    return verdict.cause if verdict is not None else None


def test_silence_explains_nothing_once_slurm_has_seen_the_end() -> None:
    assert cause(base="RUNNING") is None, "the silent node may be the cause"
    assert cause(base="UNKNOWN", flags=frozenset({"COMPLETING"})) is None
    assert cause(base="FAILED", exit_code=1) == "user_error"


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"exit_code": 137}, "process_died"),
        ({"exit_code": 0, "exit_signal": 9}, "process_died"),
        ({"exit_code": 75, "exit_meaning": "attempt_failed"}, "process_died"),
        ({"exit_code": 1}, "user_error"),
        ({"exit_code": 255}, "user_error"),
        ({"exit_code": 77, "exit_meaning": "verification_failed"}, "verification_failed"),
    ],
)
def test_a_job_without_a_word_of_its_agents(end: dict[str, object], expected: str) -> None:
    facts = subject(attempt=attempt(agents=()), slurm=slurm_job(base="FAILED", **end))
    verdict = propose(facts, NOW, POLICY).verdict
    assert verdict is not None and verdict.cause == expected


def test_probes_begin_before_silence_counts() -> None:
    restless = attempt(agents=(agent("gpu1"), agent("gpu2", 2.0)))
    asked = propose(subject(attempt=restless), NOW, POLICY)
    assert asked.suspicion is not None and asked.suspicion.nodes == ("gpu2",)
    dark = (
        probe("controller", "gpu2", "timeout"),
        probe("gpu1", "gpu2", "timeout"),
        probe("controller", "gpu1", "open"),
    )
    proved = propose(subject(attempt=restless, probes=dark), NOW, POLICY)
    assert proved.verdict is None and proved.suspicion is None, "proved, but not silent for long enough"
