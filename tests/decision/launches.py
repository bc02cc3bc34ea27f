"""Starts that failed, as a difference from the quiet world: the job is held by Slurm, its start was on gpu2."""

from dataclasses import replace
from typing import Any

from controller.decision import actions
from controller.decision.facts import SubjectFacts
from controller.decision.launch_facts import LaunchFact, StartFact
from controller.decision.propose import Proposal, propose
from tests.decision.quiet import NOW, POLICY, slurm_job, subject

RUN = "tj-000000000001"
HELD = "launch_failed_requeued_held"


def look(facts: SubjectFacts, policy: Any = POLICY) -> Proposal:
    return propose(facts, NOW, policy)


def start(host: str = "gpu2", restarts: int = 0, **changes: Any) -> StartFact:
    return replace(StartFact(restarts, host, (host,), NOW - 4), **changes)


def held(reason: str = HELD, held_by: str = "launch-failed", **changes: Any) -> SubjectFacts:
    """The first start of the job failed on gpu2; Slurm holds it. `slurm` states what differs there."""
    pending = {
        "base": "PENDING",
        "nodes": (),
        "restarts": 1,
        "reason": reason,
        "held_by": held_by,
        "submit_at": NOW - 1,
    }
    job = slurm_job(**(pending | changes.pop("slurm", {})))
    quiet: dict[str, Any] = {"state": "queued", "attempt": None, "slurm": job, "last_start": start()}
    return subject(**(quiet | changes))


def before(host: str = "gpu2", run: str = RUN, age_s: float = 100.0, **changes: Any) -> LaunchFact:
    return replace(LaunchFact(run, "slurm_infra", "launch_failed", (host,), 0, NOW - age_s), **changes)


def plans(proposal: Proposal) -> list[tuple[str, str]]:
    return [(plan.kind, plan.target) for plan in proposal.plans if plan.kind != actions.NOTIFY]


def requeue(proposal: Proposal) -> actions.ActionPlan:
    return next(plan for plan in proposal.plans if plan.kind == actions.REQUEUE)
