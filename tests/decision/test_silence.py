"""Silence that is expected opens nothing; the same silence a moment after it ended counts anew."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.decision import silence
from controller.decision.detectors import detect
from controller.decision.facts import NodeFact, SubjectFacts
from controller.decision.findings import Finding, Suspicion
from controller.slurm.states import parse_job, parse_node
from tests.decision.quiet import NOW, POLICY, agent, attempt, gpu2_lost, probe, slurm_job, subject

pytestmark = pytest.mark.pure


def found(facts: SubjectFacts) -> Finding | Suspicion | None:
    return detect(facts, NOW, POLICY)


def lost(facts: SubjectFacts) -> bool:
    finding = found(facts)
    return isinstance(finding, Finding) and finding.suspects == ("gpu2",)


def gpu2_is(text: str) -> dict[str, NodeFact]:
    state = parse_node(text)
    return dict(subject().nodes) | {"gpu2": NodeFact("gpu2", state.base, state.flags)}


EXCUSED = [
    "MIXED+DRAIN+REBOOT_REQUESTED",
    "mixed@+drain",
    "DOWN+DRAIN+REBOOT_ISSUED",
    "DOWN^*",
    "REBOOT*+DRAIN",
    "IDLE+MAINTENANCE",
    "MIXED$",
    "maint",
    "MIXED+MAINT",
    "DOWN+MAINTENANCE+NOT_RESPONDING",
    "IDLE+POWERED_DOWN",
    "IDLE~",
    "idle+power",
    "MIXED+POWERING_DOWN",
    "MIXED%",
    "MIXED+POWER_DOWN",
    "ALLOCATED!",
    "ALLOCATED+POWERING_UP",
    "ALLOCATED#",
    "ALLOCATED+POWER_UP",
    "MIXED+POWER_DRAIN",
    "DOWN+POWERING_DOWN+NOT_RESPONDING",
    "MIXED+RESERVED",
    "mixed+resv",
]
AGENTS: list[Callable[[dict[str, NodeFact]], SubjectFacts]] = [
    lambda nodes: gpu2_lost(nodes=nodes),
    lambda nodes: gpu2_lost(nodes=nodes, attempt=attempt(agents=(), world_size=None)),
]


@pytest.mark.parametrize("text", EXCUSED)
@pytest.mark.parametrize("facts", AGENTS, ids=["with agents", "without"])
def test_a_node_that_need_not_speak(text: str, facts: Callable[[dict[str, NodeFact]], SubjectFacts]) -> None:
    assert found(facts(gpu2_is(text))) is None


@pytest.mark.parametrize(
    "text",
    [
        "MIXED",
        "MIXED*",
        "MIXED+DRAIN",
        "MIXED+PLANNED",
        "MIXED-",
        "MIXED+CLOUD",
        "MIXED+DYNAMIC_NORM",
        "MIXED+COMPLETING",
        "MIXED+OF_TOMORROW",
        "DOWN",
        "DOWN*+DRAIN",
        "DOWN+REBOOT_REQUESTED",
        "DOWN+POWER_DOWN",
        "DOWN+RESERVED",
    ],
)
def test_flags_that_excuse_nothing(text: str) -> None:
    """What is only planned, or asked for, is no reason to be dead."""
    assert lost(gpu2_lost(nodes=gpu2_is(text)))


def test_in_its_own_reservation_a_job_must_speak() -> None:
    nodes = gpu2_is("MIXED+RESERVED")
    assert lost(gpu2_lost(nodes=nodes, slurm=slurm_job(reservation="course")))
    assert found(gpu2_lost(nodes=gpu2_is("MIXED+MAINT"), slurm=slurm_job(reservation="course"))) is None


@pytest.mark.parametrize(
    "text",
    [
        "SUSPENDED",
        "S",
        "STOPPED",
        "PREEMPTED",
        "PREEMPTED+COMPLETING",
        "PENDING",
        "CONFIGURING",
        "CANCELLED+COMPLETING",
    ],
)
@pytest.mark.parametrize("facts", AGENTS, ids=["with agents", "without"])
def test_a_job_that_need_not_speak(text: str, facts: Callable[[dict[str, NodeFact]], SubjectFacts]) -> None:
    state = parse_job(text)
    quiet = facts(gpu2_is("MIXED*"))
    assert quiet.slurm is not None
    assert found(replace(quiet, slurm=replace(quiet.slurm, base=state.base, flags=state.flags))) is None


@pytest.mark.parametrize("text", ["RUNNING", "COMPLETING", "RUNNING+COMPLETING", "SIGNALING", "RESIZING"])
def test_a_job_that_should_speak(text: str) -> None:
    """COMPLETING too: a job whose node died is stuck in it until Slurm gives the node up."""
    state = parse_job(text)
    assert lost(gpu2_lost(slurm=slurm_job(base=state.base, flags=state.flags)))


def test_a_suspended_job_on_a_node_that_slurm_calls_down_is_hit_all_the_same() -> None:
    facts = subject(nodes=gpu2_is("DOWN"), slurm=slurm_job(base="SUSPENDED"))
    finding = found(facts)
    assert isinstance(finding, Finding) and finding.cause == "node_down"


@pytest.mark.parametrize("over_s", [0.1, 1.0, 1.7])
def test_after_it_the_timers_start_anew(over_s: float) -> None:
    """The last word is a minute old, but the job was resumed a moment ago; probes of the time before prove nothing."""
    facts = gpu2_lost(attempt=attempt(agents=(agent("gpu1"), agent("gpu2", 60.0, counts_from=NOW - over_s))))
    assert found(facts) is None
    old = gpu2_lost(attempt=attempt(agents=(agent("gpu1"), agent("gpu2", 60.0, counts_from=NOW - 3.5))))
    assert lost(old), "and run out again"


def test_before_slurm_was_read_again_nobody_knows_whether_it_is_expected() -> None:
    assert not isinstance(found(gpu2_lost(view_at=NOW - 5.5)), Finding)
    assert not isinstance(found(gpu2_lost(view_at=None)), Finding)
    assert lost(gpu2_lost(view_at=NOW - 4.5))


def test_what_slurm_does_not_show_is_unknown() -> None:
    """A hidden job, or a hidden node: no incident, whatever the probes say."""
    assert found(gpu2_lost(slurm=None, unseen="PrivateData")) is None
    assert found(gpu2_lost(nodes={k: v for k, v in subject().nodes.items() if k != "gpu2"})) is None
    down = subject(nodes=gpu2_is("DOWN"), slurm=None, attempt=attempt(agents=(), world_size=None))
    assert found(down) is None


def rebooted(after_s: float, **changes: object) -> SubjectFacts:
    """gpu2 booted `after_s` after the last word of its agent, and answers everybody."""
    booted = {"gpu2": NodeFact("gpu2", "MIXED", boot_at=NOW - 60.0 + after_s)}
    facts = gpu2_lost(
        attempt=attempt(agents=(agent("gpu1", leader=True), agent("gpu2", 60.0))),
        nodes=dict(subject().nodes) | booted,
        slurm=slurm_job(start_at=NOW - 3600.0),
        probes=(probe("controller", "gpu2", "open", 0.3),),
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def test_a_host_that_booted_under_its_job_is_lost_however_well_it_answers() -> None:
    finding = found(rebooted(20.0))
    assert isinstance(finding, Finding)
    assert (finding.cause, finding.suspects, finding.last_good_at) == ("node_lost", ("gpu2",), NOW - 60.0)
    assert finding.clues[0].code == "booted"


@pytest.mark.parametrize(
    "facts",
    [
        rebooted(-5.0),
        rebooted(20.0, slurm=slurm_job(start_at=NOW - 30.0)),
        rebooted(20.0, slurm=slurm_job()),
        rebooted(20.0, slurm=slurm_job(start_at=NOW - 3600.0, base="COMPLETED")),
        rebooted(58.0, attempt=attempt(agents=(agent("gpu1"), agent("gpu2", 1.0)))),
    ],
    ids=["before its last word", "before the job began", "start unknown", "job over", "it speaks since"],
)
def test_boots_that_are_no_loss(facts: SubjectFacts) -> None:
    assert not isinstance(found(facts), Finding)


def test_words_follow_the_name() -> None:
    facts = gpu2_lost(nodes=gpu2_is("MIXED+MAINT"))
    assert facts.excuse("gpu2") == "gpu2 is in maintenance"
    assert facts.excuse("gpu1") is None
    assert replace(facts, slurm=slurm_job(base="SUSPENDED")).excuse("gpu1") == "job 7 is suspended"
    assert facts.excuse("gpu9") == "Slurm does not show gpu9"
    assert silence.of_job("RUNNING", ()) is None
