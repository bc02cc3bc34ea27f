"""admit(): spends the ceilings and guards over all proposals of one round. Pure.

Nothing is lost by a refusal: a deferred proposal is made again in the next round from the facts of that moment; a
node hold that a ceiling or a missing right refuses leaves the exclusion, so the job recovers all the same. A requeue
that Slurm would not let us make is put to people, with the commands.
"""

from dataclasses import dataclass, replace

from controller.decision import actions, rights
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
    ask = _not_ours_to_requeue(proposal, cluster)
    return _spend(_unapproved(_asking(proposal, ask) if ask else proposal, cluster), cluster, room)


def _not_ours_to_requeue(proposal: Proposal, cluster: ClusterFacts) -> str | None:
    """What people are asked to do where Slurm does not let us requeue the job of somebody else."""
    requeue = next((plan for plan in proposal.plans if plan.kind == actions.REQUEUE), None)
    if requeue is None or rights.may(cluster.rights, rights.JOBS_OF_OTHERS) is not False:
        return None
    owner = requeue.params.get("owner", "")
    if owner and owner == cluster.job_user:
        return None
    grant = rights.grant(cluster.rights, rights.JOBS_OF_OTHERS)
    return (
        f"the controller may not requeue jobs of {owner or 'others'} here. Run as {owner or 'their owner'} or as an "
        f"operator: {requeue.params.get('by_hand', 'scontrol requeue')}"
        + (f". Grant it with: {grant}" if grant else "")
    )


def _asking(proposal: Proposal, ask: str) -> Proposal:
    """The same verdict put to people. A bad node is held all the same."""
    return replace(
        proposal,
        plans=_without(proposal.plans, actions.REQUEUE),
        reason=f"{proposal.reason}; {ask}",
        job_event="stop" if proposal.job_event is not None else None,
        ask=ask,
        charge="none",
    )


def _unapproved(proposal: Proposal, cluster: ClusterFacts) -> Proposal:
    """What asks people is not put up for approval a second time: in `approve` mode it must hold no node by itself."""
    if proposal.ask is None or cluster.mode != "approve":
        return proposal
    return replace(proposal, plans=_without(proposal.plans, actions.HOLD_NODE))


def _without(plans: tuple[actions.ActionPlan, ...], kind: str) -> tuple[actions.ActionPlan, ...]:
    return tuple(plan for plan in plans if plan.kind != kind)


def _spend(proposal: Proposal, cluster: ClusterFacts, room: _Room) -> Admission:
    if any(plan.kind == actions.REQUEUE for plan in proposal.plans):
        if room.requeues <= 0:
            return Admission(proposal, "defer", ("the requeue cap of this minute is spent",))
        room.requeues -= 1
    kept: list[actions.ActionPlan] = []
    notes: list[str] = []
    for plan in proposal.plans:
        refusal = _hold_refusal(plan, cluster, room) if plan.kind == actions.HOLD_NODE else None
        if refusal is None:
            kept.append(plan)
        else:
            notes.append(refusal)
    outcome = "approve" if cluster.mode == "approve" else "act"
    return Admission(replace(proposal, plans=tuple(kept)), outcome, tuple(notes))


def _hold_refusal(plan: actions.ActionPlan, cluster: ClusterFacts, room: _Room) -> str | None:
    """Spends one hold, or says why not. A node that is out already costs nothing: it is adopted."""
    if plan.target in room.out:
        return None
    if rights.may(cluster.rights, rights.UPDATE_NODES) is False:
        grant = rights.grant(cluster.rights, rights.UPDATE_NODES)
        granting = f" grant it with: {grant};" if grant else ""
        return f"{plan.target} not held: the controller may not drain nodes here;{granting} this job stays away from it"
    if room.nodes <= 0:
        return f"{plan.target} not held: as many nodes are out as the ceiling allows"
    if room.drains <= 0:
        return f"{plan.target} not held: the drains of this hour are spent"
    room.nodes -= 1
    room.drains -= 1
    room.out.add(plan.target)
    return None
