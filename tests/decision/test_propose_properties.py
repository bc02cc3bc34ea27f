"""What holds for the proposals to any facts, and for facts in the store."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.decision import actions
from controller.decision.attempt import ATTEMPT
from controller.decision.codec import cluster_from_json, subject_from_json
from controller.decision.facts import SubjectFacts
from controller.decision.incident import INCIDENT
from controller.decision.propose import propose
from controller.decision.training_job import TRAINING_JOB
from tests.decision.quiet import NOW, POLICY, agent, attempt, cluster, incident, probe, slurm_job, subject

pytestmark = pytest.mark.pure

subjects = st.builds(
    lambda state, base, inc, att, gen, silence, outcomes, flags: subject(
        state=state,
        slurm=slurm_job(base=base, flags=frozenset(flags), restarts=gen - 1),
        attempt=attempt(state=att, generation=gen, agents=(agent("gpu1"), agent("gpu2", silence))),
        incident=incident(state=inc) if inc else None,
        probes=tuple(probe(v, n, o) for v, n, o in outcomes),
    ),
    st.sampled_from(TRAINING_JOB.states),
    st.sampled_from(["RUNNING", "PENDING", "FAILED", "NODE_FAIL", "CANCELLED", "COMPLETED", "TIMEOUT", "PREEMPTED"]),
    st.sampled_from([None, *INCIDENT.live]),
    st.sampled_from(ATTEMPT.states),
    st.integers(1, 3),
    st.floats(0, 100),
    st.lists(
        st.tuples(
            st.sampled_from(["controller", "gpu1"]),
            st.sampled_from(["gpu1", "gpu2", "gpu3"]),
            st.sampled_from(["open", "refused", "timeout", "unreachable"]),
        ),
        max_size=5,
    ),
    st.lists(st.sampled_from(["COMPLETING", "REQUEUED"]), max_size=2),
)


@given(subjects)
@settings(max_examples=400)
def test_proposals_only_ask_for_what_the_tables_allow(facts: SubjectFacts) -> None:
    proposal = propose(facts, NOW, POLICY)
    assert proposal.reason
    if proposal.job_event is not None:
        assert TRAINING_JOB.allows(facts.state, proposal.job_event)
    if proposal.attempt_event is not None:
        assert facts.attempt is not None
        assert ATTEMPT.allows(facts.attempt.state, proposal.attempt_event)
    for event in proposal.incident_events:
        assert facts.incident is not None
        assert INCIDENT.allows(facts.incident.state, event)
    if proposal.verdict is not None and facts.incident is not None:
        assert proposal.incident_events == ("abandon",), "never two live incidents"
    if facts.state in TRAINING_JOB.final:
        assert proposal.empty
    if facts.slurm is not None and facts.slurm.base in ("CANCELLED", "COMPLETED"):
        assert actions.REQUEUE not in [plan.kind for plan in proposal.plans]


@given(subjects)
def test_facts_survive_the_store(facts: SubjectFacts) -> None:
    assert subject_from_json(facts.to_json()) == facts


def test_cluster_facts_survive_the_store() -> None:
    facts = cluster(nodes_out=frozenset({"gpu1", "gpu3"}))
    assert cluster_from_json(facts.to_json()) == facts
