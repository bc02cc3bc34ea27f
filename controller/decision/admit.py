"""admit(): spends the ceilings and guards over all proposals of one round. Pure.

Nothing is lost by a refusal: a deferred proposal is made again in the next round from the facts of that moment; a
node hold that a ceiling refuses leaves the exclusion, so the job recovers all the same.
"""

from dataclasses import dataclass, replace

from controller.decision import actions
from controller.decision.facts import ClusterFacts
from controller.decision.policy import Policy
from controller.decision.propose import Proposal


@dataclass(frozen=True)
class Admission:
    """`outcome`: `act`, `approve` (a person must agree), `observe` (record only) or `defer` (look again next round).
    `proposal` carries only the admitted plans; `notes` say what was left out and why."""

    proposal: Proposal
    outcome: str
    notes: tuple[str, ...] = ()


@dataclass
class _Room:
    """What is left to spend in this round."""

    nodes: int
    drains: int
    requeues: int
    out: set[str]


def admit(proposals: list[Proposal], cluster: ClusterFacts, now: float, policy: Policy) -> list[Admission]:
    """In the given order, one Admission each. The sum of admitted holds and requeues never passes a ceiling."""
    room = _room(cluster, policy)
    return [_admit_one(proposal, cluster, now, policy, room) for proposal in proposals]


def _room(cluster: ClusterFacts, policy: Policy) -> _Room:
    ceilings = policy.ceilings
    by_fraction = int(cluster.nodes_total * ceilings.max_fraction_out)
    return _Room(
        nodes=min(ceilings.max_nodes_out, by_fraction) - len(cluster.nodes_out),
        drains=ceilings.max_drains_per_hour - cluster.drains_last_hour,
        requeues=ceilings.max_requeues_per_minute - cluster.requeues_last_minute,
        out=set(cluster.nodes_out),
    )


def _admit_one(proposal: Proposal, cluster: ClusterFacts, now: float, policy: Policy, room: _Room) -> Admission:
    if proposal.verdict is None:
        return Admission(proposal, "act")
    stale = cluster.view_at is None or now - cluster.view_at > policy.limits.view_stale_s
    if stale:
        return Admission(proposal, "defer", ("the last good view of Slurm is too old to act upon",))
    if cluster.paused:
        return Admission(proposal, "defer", ("Relume is paused",))
    if cluster.mode == "observe" or cluster.breaker_open:
        why = "the breaker is open" if cluster.breaker_open else "observe mode"
        return Admission(replace(proposal, plans=(), job_event=None), "observe", (why,))
    return _spend(proposal, cluster, room)


def _spend(proposal: Proposal, cluster: ClusterFacts, room: _Room) -> Admission:
    if any(plan.kind == actions.REQUEUE for plan in proposal.plans):
        if room.requeues <= 0:
            return Admission(proposal, "defer", ("the requeue cap of this minute is spent",))
        room.requeues -= 1
    kept: list[actions.ActionPlan] = []
    notes: list[str] = []
    for plan in proposal.plans:
        refusal = _hold_refusal(plan, room) if plan.kind == actions.HOLD_NODE else None
        if refusal is None:
            kept.append(plan)
        else:
            notes.append(refusal)
    outcome = "approve" if cluster.mode == "approve" else "act"
    return Admission(replace(proposal, plans=tuple(kept)), outcome, tuple(notes))


def _hold_refusal(plan: actions.ActionPlan, room: _Room) -> str | None:
    """Spends one hold, or says why not. A node that is out already costs nothing: it is adopted."""
    if plan.target in room.out:
        return None
    if room.nodes <= 0:
        return f"{plan.target} not held: as many nodes are out as the ceiling allows"
    if room.drains <= 0:
        return f"{plan.target} not held: the drains of this hour are spent"
    room.nodes -= 1
    room.drains -= 1
    room.out.add(plan.target)
    return None
