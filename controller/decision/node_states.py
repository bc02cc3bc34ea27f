"""Detectors that take Slurm's word: a node that is DOWN, one that it cannot reach, a job that it ended for a node."""

from controller.decision.attempt_facts import AgentFact, AttemptFact
from controller.decision.facts import NodeFact, SubjectFacts
from controller.decision.findings import NODE_DOWN, NODE_FAILED, NODE_LOST, Clue, Finding, Suspicion
from controller.decision.policy import Policy
from controller.decision.silent_nodes import answers, lost_cause, probe_clue, proved_silent, slurm_clue, suspicion


def node_says_slurm(subject: SubjectFacts, now: float, policy: Policy) -> Finding | Suspicion | None:
    """Slurm marks a node of the attempt DOWN: its jobs are being killed there whatever else is true."""
    attempt = subject.live_attempt
    if subject.slurm is None:
        return None
    names = attempt.nodes if attempt is not None else _nodes_in_slurm(subject)
    known = (subject.nodes[name] for name in names if name in subject.nodes)
    down = [node for node in known if node.down and not node.away]
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


def node_rebooted(subject: SubjectFacts, now: float, policy: Policy) -> Finding | None:
    """A host that booted after its agent's last word, by nobody's order: its processes are gone, however well it
    answers now."""
    attempt = subject.live_attempt
    if attempt is None or attempt.finished or subject.requeued_since or subject.slurm is None:
        return None
    back = [agent for agent in attempt.agents if _booted_since(subject, agent)]
    gone = [agent for agent in back if now - agent.silent_since > policy.limits.agent_silent_s]
    if not gone:
        return None
    last = min(agent.received_at for agent in gone)
    names = tuple(sorted(agent.node for agent in gone))
    clues = tuple(_boot_clue(subject.nodes[agent.node], agent) for agent in gone)
    text = f"{', '.join(names)} booted again under the job, after the last word of its agent"
    return Finding(lost_cause(names, attempt), text, suspects=names, clues=clues, fault_at=last, last_good_at=last)


def _booted_since(subject: SubjectFacts, agent: AgentFact) -> bool:
    """Compared with the job's start too: both are times of Slurm's clock, the agent's last word is one of ours."""
    node, slurm = subject.nodes.get(agent.node), subject.slurm
    if node is None or node.boot_at is None or slurm is None or slurm.start_at is None:
        return False
    if agent.state == "ended" or slurm.base != "RUNNING" or subject.excuse(agent.node) is not None:
        return False
    return node.boot_at > max(agent.silent_since, slurm.start_at)


def _boot_clue(node: NodeFact, agent: AgentFact) -> Clue:
    at = node.boot_at or agent.received_at
    after = f"{at - agent.received_at:.0f} s after the last message of its agent"
    return Clue("slurm", "slurm", node.name, "booted", f"{node.name} booted {after}", at)


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
        clues=tuple(slurm_clue(node, at) for node in down),
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
        if node is not None and not node.responding and subject.excuse(node.name) is None
    ]
    if not mute:
        return None
    fresh = [p for p in subject.probes if now - p.at <= policy.limits.probe_fresh_s]
    as_agents = [AgentFact(node.name, now - policy.limits.probe_fresh_s, "running") for node in mute]
    if any(answers(agent, fresh) for agent in as_agents):
        return None
    lost = [agent for agent in as_agents if proved_silent(subject, agent, fresh)]
    if len(lost) < len(as_agents):
        return suspicion(subject, [a.node for a in as_agents], now, as_agents)
    names = tuple(sorted(a.node for a in lost))
    clues = [slurm_clue(subject.nodes[n], subject.view_at or now) for n in names]
    clues += [probe_clue(p, "accuses" if p.node in names else "clears") for p in fresh if p.vantage == "controller"]
    reason = f"{', '.join(names)}: NOT_RESPONDING in Slurm and silent to the controller"
    return Finding(NODE_LOST, reason, suspects=names, clues=tuple(clues), fault_at=subject.view_at)
