"""The detectors: each looks at one training job and says Finding, Suspicion or None.

To add one, write the function and list it in DETECTORS.

A node is *lost* only on the agreement of two vantage points, beside another node that answers at the same moment; when
every node looks silent the controller suspects itself and says so. `refused` at the slurmd port is a living host.
"""

from collections.abc import Callable, Iterable

from controller.decision.facts import LIVING_OUTCOMES, AgentFact, AttemptFact, NodeFact, ProbeFact, SubjectFacts
from controller.decision.findings import (
    MANY_NODES,
    NODE_DOWN,
    NODE_FAILED,
    NODE_LOST,
    Clue,
    Finding,
    Suspicion,
)
from controller.decision.policy import Policy
from controller.decision.process_exits import job_ended_badly, process_died, verification_failed

# Probing harms nobody, so it begins before the silence is long enough to count: the proof is there when it does.
PROBE_FROM = 0.6

Detector = Callable[[SubjectFacts, float, Policy], Finding | Suspicion | None]


def node_lost(subject: SubjectFacts, now: float, policy: Policy) -> Finding | Suspicion | None:
    """A silent agent, no answer to real probes from two vantage points, and another node reachable."""
    attempt = subject.live_attempt
    if attempt is None or attempt.finished or subject.requeued_since:
        return None
    limit = policy.limits.agent_silent_s
    restless = [agent for agent in attempt.agents if _is_silent(subject, agent, now, limit * PROBE_FROM)]
    if not restless:
        return None
    fresh = [p for p in subject.probes if now - p.at <= policy.limits.probe_fresh_s]
    proved = [agent for agent in restless if _proved_silent(subject, agent, fresh)]
    lost = [agent for agent in proved if _is_silent(subject, agent, now, limit)]
    unsure = [agent for agent in restless if agent not in proved and not _answers(agent, fresh)]
    if unsure and not _waited_for_the_others(lost, fresh, now):
        return _suspicion(subject, [agent.node for agent in unsure], now, restless)
    if not lost:
        return None
    return _lost_finding(subject, attempt, lost, fresh)


def node_says_slurm(subject: SubjectFacts, now: float, policy: Policy) -> Finding | Suspicion | None:
    """Slurm marks a node of the attempt DOWN: its jobs are being killed there whatever else is true."""
    attempt = subject.live_attempt
    names = attempt.nodes if attempt is not None else _nodes_in_slurm(subject)
    known = (subject.nodes[name] for name in names if name in subject.nodes)
    down = [node for node in known if node.down and not node.rebooting]
    if down:
        return _down_finding(subject, down, now)
    if attempt is None or attempt.agents:
        return None
    return _not_responding(subject, attempt, now, policy)


def _nodes_in_slurm(subject: SubjectFacts) -> tuple[str, ...]:
    """Where Slurm runs the job now; an ended job's nodes are history."""
    return subject.slurm.nodes if subject.slurm is not None and subject.slurm.base == "RUNNING" else ()


def node_failed(subject: SubjectFacts, now: float, policy: Policy) -> Finding | Suspicion | None:
    """Slurm ended the job with NODE_FAIL or BOOT_FAIL, and no node of it looks bad any more."""
    slurm = subject.slurm
    if slurm is None or slurm.base not in ("NODE_FAIL", "BOOT_FAIL"):
        return None
    clue = Clue("slurm", "slurm", slurm.job_id, slurm.base, f"job {slurm.job_id} {slurm.base} {slurm.reason}", now)
    return Finding(NODE_FAILED, f"Slurm ended job {slurm.job_id} with {slurm.base}", clues=(clue,), fault_at=now)


DETECTORS: tuple[Detector, ...] = (
    verification_failed,
    node_says_slurm,
    node_failed,
    node_lost,
    process_died,
    job_ended_badly,
)


def detect(subject: SubjectFacts, now: float, policy: Policy) -> Finding | Suspicion | None:
    """The first finding in the order above; a suspicion stops the detectors behind it (they would blame a victim)."""
    for detector in DETECTORS:
        found = detector(subject, now, policy)
        if found is not None:
            return found
    return None


# --- node lost ------------------------------------------------------------------------------------------------


def _is_silent(subject: SubjectFacts, agent: AgentFact, now: float, limit_s: float) -> bool:
    node = subject.nodes.get(agent.node)
    if agent.state == "ended" or (node is not None and node.expected_silence):
        return False
    return now - agent.received_at > limit_s


def _since(agent: AgentFact, probes: Iterable[ProbeFact]) -> list[ProbeFact]:
    return [p for p in probes if p.node == agent.node and p.at > agent.received_at]


def _answers(agent: AgentFact, probes: Iterable[ProbeFact]) -> bool:
    """Some vantage point reached the host since its agent fell silent: a living host, so nothing is lost."""
    return any(p.outcome in LIVING_OUTCOMES for p in _since(agent, probes))


def _proved_silent(subject: SubjectFacts, agent: AgentFact, fresh: list[ProbeFact]) -> bool:
    about = _since(agent, fresh)
    from_controller = [p for p in about if p.vantage == "controller" and p.silent]
    if not from_controller or _answers(agent, fresh):
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


def _suspicion(subject: SubjectFacts, nodes: list[str], now: float, silent: list[AgentFact]) -> Suspicion:
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
            clues.append(_probe_clue(probe, "accuses" if accuses else "clears"))
    clues += [_slurm_clue(subject.nodes[n], subject.view_at or 0.0) for n in sorted(names) if n in subject.nodes]
    last = min(a.received_at for a in lost)
    who = ", ".join(sorted(names))
    many = len(names) > 2 and 2 * len(names) >= len(attempt.nodes)
    text = f"{who}: agent silent, no answer to probes from two vantage points, other nodes answer"
    return Finding(
        MANY_NODES if many else NODE_LOST,
        text,
        suspects=tuple(sorted(names)),
        clues=tuple(clues),
        fault_at=last,
        last_good_at=last,
    )


def _probe_clue(probe: ProbeFact, stance: str) -> Clue:
    raw = f"TCP probe of {probe.node} from {probe.vantage}: {probe.outcome}"
    return Clue("network", f"probe/{probe.vantage}", probe.node, f"probe_{probe.outcome}", raw, probe.at, stance)


def _slurm_clue(node: NodeFact, at: float) -> Clue:
    state = "+".join([node.base, *sorted(node.flags)])
    bad = node.down or not node.responding
    return Clue("slurm", "slurm", node.name, "node_state", f"{node.name} {state}", at, "accuses" if bad else "soft")


# --- Slurm's word ----------------------------------------------------------------------------------------------


def _down_finding(subject: SubjectFacts, down: list[NodeFact], now: float) -> Finding:
    at = subject.view_at or now
    names = tuple(sorted(node.name for node in down))
    live = subject.live_attempt
    agents = {a.node: a.received_at for a in (live.agents if live is not None else ())}
    heard = [agents[n] for n in names if n in agents]
    last_good = min(heard) if heard else None
    why = "; ".join(f"{node.name} {node.reason}".strip() for node in down)
    return Finding(
        NODE_DOWN,
        f"Slurm has {', '.join(names)} DOWN ({why})",
        suspects=names,
        clues=tuple(_slurm_clue(node, at) for node in down),
        fault_at=min(last_good, at) if last_good is not None else at,
        last_good_at=last_good,
    )


def _not_responding(
    subject: SubjectFacts, attempt: AttemptFact, now: float, policy: Policy
) -> Finding | Suspicion | None:
    """Without agents: Slurm cannot reach the node, the controller neither, and it reaches another one."""
    mute = [
        node
        for node in (subject.nodes.get(n) for n in attempt.nodes)
        if node is not None and not node.responding and not node.expected_silence
    ]
    if not mute:
        return None
    fresh = [p for p in subject.probes if now - p.at <= policy.limits.probe_fresh_s]
    as_agents = [AgentFact(node.name, now - policy.limits.probe_fresh_s, "running") for node in mute]
    if any(_answers(agent, fresh) for agent in as_agents):
        return None
    lost = [agent for agent in as_agents if _proved_silent(subject, agent, fresh)]
    if len(lost) < len(as_agents):
        return _suspicion(subject, [a.node for a in as_agents], now, as_agents)
    names = tuple(sorted(a.node for a in lost))
    clues = [_slurm_clue(subject.nodes[n], subject.view_at or now) for n in names]
    clues += [_probe_clue(p, "accuses" if p.node in names else "clears") for p in fresh if p.vantage == "controller"]
    reason = f"{', '.join(names)}: NOT_RESPONDING in Slurm and silent to the controller"
    return Finding(NODE_LOST, reason, suspects=names, clues=tuple(clues), fault_at=subject.view_at)
