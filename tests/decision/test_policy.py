"""The policy: strict, and its errors name the key."""

import pytest

from controller.decision.policy import Policy, PolicyError, policy_from

pytestmark = pytest.mark.pure


def test_an_empty_file_is_the_default_and_observes() -> None:
    assert policy_from({}) == Policy()
    assert Policy().mode == "observe"


def test_values_are_taken_and_the_digest_follows_them() -> None:
    policy = policy_from({"mode": "act", "limits": {"agent_silent_s": 5}, "ceilings": {"max_nodes_out": 1}})
    assert (policy.mode, policy.limits.agent_silent_s, policy.ceilings.max_nodes_out) == ("act", 5.0, 1)
    assert policy.digest() != Policy().digest()
    assert (
        policy.digest()
        == policy_from({"mode": "act", "limits": {"agent_silent_s": 5.0}, "ceilings": {"max_nodes_out": 1}}).digest()
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"modes": "act"}, "modes: unknown key"),
        ({"ceilings": {"max_node_out": 1}}, "ceilings.max_node_out: unknown key"),
        ({"mode": "on"}, "mode: 'on' is none of"),
        ({"limits": 3}, "limits: expected a table"),
        ({"limits": {"agent_silent_s": "3"}}, "limits.agent_silent_s: expected float"),
        ({"limits": {"agent_silent_s": True}}, "limits.agent_silent_s: expected float"),
        ({"ceilings": {"max_nodes_out": -1}}, "-1 is negative"),
        ({"limits": {"agent_silent_s": float("nan")}}, "limits.agent_silent_s: not a number up to"),
        ({"limits": {"exclusion_s": 1e300}}, "limits.exclusion_s: not a number up to"),
        ({"limits": {"exclusion_s": 10**400}}, "limits.exclusion_s: not a number up to"),
        ({"limits": {"exclusion_s": float("-inf")}}, "limits.exclusion_s: -inf is negative"),
        ({"ceilings": {"max_fraction_out": 0}}, "above 0"),
        ({"launch": {"backoff_s": 5}}, "launch.backoff_s: at least 30"),
        ({"launch": {"backoff_s": 60, "backoff_max_s": 40}}, "launch.backoff_max_s: less than"),
        ({"launch": {"hold_after": 1}}, "launch.hold_after: at least 2"),
        ({"launch": {"backoff": 60}}, "launch.backoff: unknown key"),
        ({"stall": {"floor_s": 1}}, "stall.floor_s: at least 5"),
        ({"stall": {"step_s": 0.5}}, "stall.step_s: at least 5"),
        ({"stall": {"longest_factor": 1}}, "stall.longest_factor: at least 1.5"),
        ({"stall": {"learn_from": 0}}, "stall.learn_from: at least 1"),
        ({"stall": {"steps": 5}}, "stall.steps: unknown key"),
        ({"trust_job_evidence": 1}, "trust_job_evidence: expected bool"),
    ],
)
def test_errors_name_the_key(data: dict[str, object], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        policy_from(data)
