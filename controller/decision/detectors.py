"""The detectors: each looks at one training job and says Finding, Suspicion or None.

To add one, write the function and list it in DETECTORS.
"""

from collections.abc import Callable

from controller.decision.facts import SubjectFacts
from controller.decision.findings import Finding, Suspicion
from controller.decision.hard_signs import hard_sign
from controller.decision.launch import launch_failed
from controller.decision.loss_faults import not_finite
from controller.decision.node_states import node_failed, node_rebooted, node_says_slurm
from controller.decision.policy import Policy
from controller.decision.process_exits import (
    job_ended_badly,
    preempted_for_good,
    process_died,
    verification_failed,
)
from controller.decision.save_faults import saves_fail
from controller.decision.shortfall import ended_short
from controller.decision.silent_nodes import node_lost
from controller.decision.stalls import stalled

Detector = Callable[[SubjectFacts, float, Policy], Finding | Suspicion | None]

DETECTORS: tuple[Detector, ...] = (
    verification_failed,
    node_says_slurm,
    launch_failed,
    node_failed,
    hard_sign,
    node_rebooted,
    node_lost,
    process_died,
    job_ended_badly,
    preempted_for_good,
    ended_short,
    stalled,
    not_finite,
    saves_fail,
)


def detect(subject: SubjectFacts, now: float, policy: Policy) -> Finding | Suspicion | None:
    """The first finding in the order above; a suspicion stops the detectors behind it (they would blame a victim)."""
    for detector in DETECTORS:
        found = detector(subject, now, policy)
        if found is not None:
            return found
    return None
