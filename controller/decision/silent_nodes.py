"""The detector of silent nodes: an agent that says nothing, a host that answers nobody.

A node is *lost* only on the agreement of two vantage points, beside another node that answers at the same moment; when
every node looks silent the controller suspects itself and says so. `refused` at the slurmd port is a living host.
Nothing is concluded from silence that is expected, nor about the nodes of a job that Slurm does not show.
"""

from collections.abc import Collection, Iterable

from controller.decision.attempt_facts import AgentFact, AttemptFact
from controller.decision.facts import LIVING_OUTCOMES, NodeFact, ProbeFact, SubjectFacts
from controller.decision.findings import MANY_NODES, NODE_LOST, Clue, Finding, Suspicion
from controller.decision.policy import Policy

# Probing harms nobody, so it begins before the silence is long enough to count: the proof is there when it does.
PROBE_FROM = 0.6


def node_lost(subject: SubjectFacts, now: float, policy: Policy) -> Finding | Suspicion | None:
    """A silent agent, no answer to real probes from two vantage points, and another node reachable."""
    attempt = subject.live_attempt
    if attempt is None or attempt.finished or subject.requeued_since or subject.slurm is None:
        return None
    limit = policy.limits.agent_silent_s
    restless = [agent for agent in attempt.agents if _is_silent(subject, agent, now, limit * PROBE_FROM)]
    if not restless:
        return None
    fresh = [p for p in subject.probes if now - p.at <= policy.limits.probe_fresh_s]
    proved = [agent for agent in restless if proved_silent(subject, agent, fresh)]
    lost = [agent for agent in proved if _is_silent(subject, agent, now, limit) and _read_since(subject, agent)]
    unsure = [agent for agent in restless if agent not in proved and not answers(agent, fresh)]
    if unsure and not _waited_for_the_others(lost, fresh, now):
        return suspicion(subject, [agent.node for agent in unsure], now, restless)
    if not lost:
        return None
    return _lost_finding(subject, attempt, lost, fresh)


def _is_silent(subject: SubjectFacts, agent: AgentFact, now: float, limit_s: float) -> bool:
    if agent.state == "ended" or subject.excuse(agent.node) is not None:
        return False
    return now - agent.silent_since > limit_s


def _read_since(subject: SubjectFacts, agent: AgentFact) -> bool:
    """Slurm was read since the silence began: it would have said that job or node is suspended, rebooting or away."""
    return subject.view_at is not None and subject.view_at > agent.silent_since


def _since(agent: AgentFact, probes: Iterable[ProbeFact]) -> list[ProbeFact]:
    return [p for p in probes if p.node == agent.node and p.at > agent.silent_since]


def answers(agent: AgentFact, probes: Iterable[ProbeFact]) -> bool:
    """Some vantage point reached the host since its agent fell silent: a living host, so nothing is lost."""
    return any(p.outcome in LIVING_OUTCOMES for p in _since(agent, probes))


def proved_silent(subject: SubjectFacts, agent: AgentFact, fresh: list[ProbeFact]) -> bool:
    about = _since(agent, fresh)
    from_controller = [p for p in about if p.vantage == "controller" and p.silent]
    if not from_controller or answers(agent, fresh):
        return False
    node = subject.nodes.get(agent.node)
    second = any(p.vantage != "controller" and p.silent for p in about)
    slurm_agrees = node is not None and (node.down or not node.responding)
    earliest = min(p.at for p in from_controller)
    return (second or slurm_agrees) and _control_answers(agent.node, fresh, earliest)


def _waited_for_the_others(lost: list[AgentFact], fresh: list[ProbeFact], now: float) -> bool:
    """Nodes that die together are one incident: wait 2 s from the first proof for the proof about the others."""
    proofs = [p.at for agent in lost for p in _since(agent, fresh)]
    return bool(proofs) and now - min(proofs) >= 2.0


def _control_answers(suspect: str, fresh: list[ProbeFact], since: float) -> bool:
    """Another node answered the controller in the same round (within 3 s of the silent probe, or later)."""
    return any(
        p.vantage == "controller" and p.node != suspect and p.outcome in LIVING_OUTCOMES and p.at >= since - 3.0
        for p in fresh
    )


def suspicion(subject: SubjectFacts, nodes: list[str], now: float, silent: list[AgentFact]) -> Suspicion:
    ages = ", ".join(f"{a.node} {now - a.received_at:.1f} s" for a in silent)
    controls = tuple(n for n in subject.controls if n not in nodes)[:2]
    witnesses = tuple(n for n in subject.witnesses if n not in nodes)[:2]
    return Suspicion(tuple(nodes), controls, witnesses, f"no message from the agent: {ages}; probing")


def _lost_finding(
    subject: SubjectFacts, attempt: AttemptFact, lost: list[AgentFact], fresh: list[ProbeFact]
) -> Finding:
    clues = [
        Clue("process", "agent", a.node, "agent_silent", f"last message of the agent on {a.node}", a.received_at)
        for a in lost
    ]
    names = {a.node for a in lost}
    for probe in fresh:
        accuses = probe.node in names and probe.silent
        control = probe.node not in names and probe.outcome in LIVING_OUTCOMES and probe.vantage == "controller"
        if accuses or control:
            clues.append(probe_clue(probe, "accuses" if accuses else "clears"))
    clues += [slurm_clue(subject.nodes[n], subject.view_at or 0.0) for n in sorted(names) if n in subject.nodes]
    last = min(a.received_at for a in lost)
    who = ", ".join(sorted(names))
    text = f"{who}: agent silent, no answer to probes from two vantage points, other nodes answer"
    return Finding(
        lost_cause(names, attempt),
        text,
        suspects=tuple(sorted(names)),
        clues=tuple(clues),
        fault_at=last,
        last_good_at=last,
    )


def lost_cause(names: Collection[str], attempt: AttemptFact) -> str:
    """Many nodes at once are one incident of what joins them."""
    return MANY_NODES if len(names) > 2 and 2 * len(names) >= len(attempt.nodes) else NODE_LOST


def probe_clue(probe: ProbeFact, stance: str) -> Clue:
    raw = f"TCP probe of {probe.node} from {probe.vantage}: {probe.outcome}"
    return Clue("network", f"probe/{probe.vantage}", probe.node, f"probe_{probe.outcome}", raw, probe.at, stance)


def slurm_clue(node: NodeFact, at: float) -> Clue:
    state = "+".join([node.base, *sorted(node.flags)])
    bad = node.down or not node.responding
    return Clue("slurm", "slurm", node.name, "node_state", f"{node.name} {state}", at, "accuses" if bad else "soft")
