"""Facts for every live training job, from rows only, with a fixed number of queries."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from django.db.models import Q, QuerySet

from controller.clock import aware
from controller.decision.attempt_facts import AgentFact, AttemptFact, RankExit
from controller.decision.facts import ClusterFacts, NodeFact, ProbeFact, SubjectFacts
from controller.decision.incident import INCIDENT
from controller.decision.launch_facts import LaunchFact, SchedulerFact
from controller.decision.node_hold import NODE_HOLD
from controller.decision.policy import Policy
from controller.decision.training_job import TRAINING_JOB
from controller.models import AgentReport, Attempt, Cluster, Incident, Node, NodeCheck, NodeHold, TrainingJob
from controller.snapshot import launches, past, progress, remembered, subject_evidence
from controller.snapshot.cluster_facts import cluster_facts
from controller.snapshot.job_view import slurm_fact
from controller.snapshot.past import PastIncident
from controller.snapshot.signs import SignRows
from controller.snapshot.signs import read as read_signs

log = structlog.get_logger()

PROBES_KEPT_S = 15.0
MARKS_KEPT_S = 3600.0
WITNESS_HEARD_S = 2.0
CONTROL_CANDIDATES = 50
PASSED = ("PASS", "DEGRADED", "RESHARDED")
EXIT_KEYS = ("rank", "node", "exit_code", "signal", "at", "torn_down", "meaning")


@dataclass
class Rows:
    """Everything the facts of one round are made of, keyed for look-up."""

    jobs: list[TrainingJob]
    attempts: dict[int, list[Attempt]] = field(default_factory=dict)
    agents: dict[int, list[AgentReport]] = field(default_factory=dict)
    leaders_before: dict[int, AgentReport] = field(default_factory=dict)
    nodes: dict[str, NodeFact] = field(default_factory=dict)
    probes: list[ProbeFact] = field(default_factory=list)
    incidents: dict[int, Incident] = field(default_factory=dict)
    charged: dict[int, list[PastIncident]] = field(default_factory=dict)
    speaking: list[tuple[int, str]] = field(default_factory=list)  # (attempt, node) heard just now
    up: list[str] = field(default_factory=list)
    excused: dict[str, float] = field(default_factory=dict)  # by node: when an expected silence of it was over
    launches: list[LaunchFact] = field(default_factory=list)
    marks: dict[str, float] = field(default_factory=dict)  # by node: when Slurm drained it for a failed start
    scheduler: SchedulerFact = field(default_factory=SchedulerFact)
    signs: SignRows = field(default_factory=SignRows)
    memory: remembered.Memory = field(default_factory=remembered.Memory)


def read_facts(cluster: Cluster, now: float, policy: Policy) -> tuple[list[SubjectFacts], ClusterFacts]:
    """All live training jobs of the cluster. Silence counts from `cluster.watching_since` at the
    earliest: what was not watched was not silent."""
    jobs = TrainingJob.objects.filter(cluster=cluster, state__in=TRAINING_JOB.live).order_by("pk")
    rows = _rows(cluster, list(jobs), now, policy)
    rows.launches = launches.failed_starts(cluster, now - policy.launch.memory_s)
    watched = cluster.watching_since.timestamp() if cluster.watching_since is not None else now
    return list(_subjects(rows, watched, now)), cluster_facts(cluster, now, policy)


def _subjects(rows: Rows, watched: float, now: float) -> Iterator[SubjectFacts]:
    """A row that cannot be understood stops the decisions about its own training job, not about the others."""
    for job in rows.jobs:
        try:
            subject = _subject(job, rows, watched)
            attempts = rows.attempts.get(job.pk, [])
            reports = rows.agents.get(attempts[-1].pk, []) if attempts else []
            yield subject_evidence.added(subject, job, attempts, reports, rows.signs, rows.memory, now)
        except (KeyError, TypeError, ValueError, AttributeError):
            log.exception("facts_unreadable", run_id=job.run_id)


# --- reading ----------------------------------------------------------------------------------------------------


def _rows(cluster: Cluster, jobs: list[TrainingJob], now: float, policy: Policy) -> Rows:
    rows = Rows(jobs)
    for attempt in Attempt.objects.filter(training_job__in=jobs).order_by("generation").defer("log_tail"):
        rows.attempts.setdefault(attempt.training_job_id, []).append(attempt)
    newest = [attempts[-1].pk for attempts in rows.attempts.values()]
    for report in AgentReport.objects.filter(attempt__in=newest).order_by("node"):
        rows.agents.setdefault(report.attempt_id, []).append(report)
    rows.leaders_before = progress.leaders_before(rows.attempts)
    live = Incident.objects.filter(training_job__in=jobs, state__in=INCIDENT.live).select_related("attempt")
    for incident in live.prefetch_related("actions"):
        rows.incidents[incident.training_job_id] = incident
    rows.charged = past.read(jobs)
    rows.probes = _probes(cluster, now)
    heard = AgentReport.objects.filter(
        attempt__training_job__cluster=cluster, received_at__gt=aware(now - WITNESS_HEARD_S)
    ).exclude(state="ended")
    rows.speaking = _speaking(rows, heard.only("attempt_id", "node").order_by("node"))
    rows.scheduler = launches.scheduler_fact(cluster)
    rows.marks = launches.marked(cluster, now - MARKS_KEPT_S)
    newest_of = {job: attempts[-1] for job, attempts in rows.attempts.items()}
    names = {name for attempt in newest_of.values() for name in attempt.nodes}
    rows.signs = read_signs(cluster, jobs, newest_of, names, now - policy.limits.sign_memory_s)
    names |= {name for job in jobs for name in job.view.get("nodes", ())}
    since = now - policy.limits.strike_memory_s
    rows.memory = remembered.read(cluster, jobs, rows.attempts, names, rows.signs.sensors, since)
    rows.nodes, rows.up = _nodes(cluster, rows)
    return rows


def _speaking(rows: Rows, heard: Iterable[AgentReport]) -> list[tuple[int, str]]:
    """An agent names its own node; it is a witness only where Slurm runs its job."""
    places = {rows.attempts[job.pk][-1].pk: job.view.get("nodes", ()) for job in rows.jobs if job.pk in rows.attempts}
    return [(r.attempt_id, r.node) for r in heard if r.node in places.get(r.attempt_id, ())]


def _probes(cluster: Cluster, now: float) -> list[ProbeFact]:
    checks = NodeCheck.objects.filter(
        node__cluster=cluster, answered_at__gt=aware(now - PROBES_KEPT_S), asked_at__gt=aware(now - PROBES_KEPT_S)
    ).exclude(outcome="")
    return [
        ProbeFact(check.vantage, check.node.name, check.outcome, check.answered_at.timestamp())
        for check in checks.select_related("node").order_by("answered_at")
        if check.answered_at is not None
    ]


def _nodes(cluster: Cluster, rows: Rows) -> tuple[dict[str, NodeFact], list[str]]:
    names = {name for attempts in rows.attempts.values() for name in attempts[-1].nodes}
    names |= {report.node for reports in rows.agents.values() for report in reports}
    names |= {name for job in rows.jobs for name in job.view.get("nodes", ())}
    names |= {name for _, name in rows.speaking} | rows.marks.keys()
    names |= {name for fault in rows.signs.faults.values() for name in fault.nodes}
    names |= {start.host for job in rows.jobs if (start := launches.start_fact(job.view)) is not None}
    shown = _shown(cluster)
    believed_up = shown.filter(base_state__in=("IDLE", "MIXED", "ALLOCATED")).order_by("name")
    some = list(believed_up.values_list("pk", flat=True)[:CONTROL_CANDIDATES])
    wanted = shown.filter(Q(name__in=names) | Q(pk__in=some)).order_by("name")
    holds = dict(
        NodeHold.objects.filter(node__cluster=cluster, state__in=NODE_HOLD.live).values_list("node_id", "state")
    )
    facts = {}
    for node in wanted:
        facts[node.name] = _node_fact(node, holds.get(node.pk), rows.signs.answered.get(node.name))
        if node.excused_at is not None:
            rows.excused[node.name] = node.excused_at.timestamp()
    up = [n.name for n in facts.values() if n.base in ("IDLE", "MIXED", "ALLOCATED") and n.responding]
    return facts, up


def _shown(cluster: Cluster) -> QuerySet[Node]:
    """Without the nodes that the last view left out (a hidden partition, PrivateData): what it said before is not true
    of today."""
    nodes = Node.objects.filter(cluster=cluster)
    return nodes if cluster.view_at is None else nodes.filter(seen_at__gte=cluster.view_at)


def _node_fact(node: Node, hold_state: str | None, answered_at: float | None) -> NodeFact:
    return NodeFact(
        name=node.name,
        base=node.base_state,
        flags=frozenset(node.flags),
        reason=node.reason,
        reason_user=node.reason_user,
        jobs=tuple(node.jobs),
        hold_state=hold_state,
        boot_at=node.boot_at.timestamp() if node.boot_at is not None else None,
        reason_at=node.reason_at.timestamp() if node.reason_at is not None else None,
        answered_at=answered_at,
    )


# --- one subject --------------------------------------------------------------------------------------------------


def _subject(job: TrainingJob, rows: Rows, watched: float) -> SubjectFacts:
    attempts = rows.attempts.get(job.pk, [])
    newest = attempts[-1] if attempts else None
    names = set(newest.nodes if newest is not None else ()) | set(job.view.get("nodes", ()))
    incident = rows.incidents.get(job.pk)
    if incident is not None:
        names |= set(incident.suspects)
    fault = rows.signs.faults.get(job.pk)
    names |= set(fault.nodes if fault is not None else ())
    start = launches.start_fact(job.view)
    names |= launches.marked_for(job.view, rows.marks) | ({start.host} if start is not None else set())
    return SubjectFacts(
        run_id=job.run_id,
        state=job.state,
        enrolled=job.enrolled and job.owner_confirmed,
        attempt=_attempt(job, attempts, rows, _counts_from(job, watched)) if newest is not None else None,
        slurm=slurm_fact(job.view),
        view_at=job.view_at.timestamp() if job.view_at is not None else None,
        nodes={name: rows.nodes[name] for name in sorted(names) if name in rows.nodes},
        probes=tuple(rows.probes),
        witnesses=_witnesses(newest, rows),
        controls=_controls(newest, rows),
        incident=past.live_fact(incident) if incident is not None else None,
        spent=past.spent(rows.charged.get(job.pk, []), attempts),
        unseen=job.view.get("missing", ""),
        last_start=start,
        launches=() if job.view.get("base") == "RUNNING" else tuple(rows.launches),
        scheduler=rows.scheduler,
        starts_before=past.starts_before(job.slurm_job_id, attempts),
        total_steps=job.total_steps,
    )


def _counts_from(job: TrainingJob, watched: float) -> float:
    """What was not watched was not silent, and neither was a job that was suspended."""
    return watched if job.excused_at is None else max(watched, job.excused_at.timestamp())


def _witnesses(attempt: Attempt | None, rows: Rows) -> tuple[str, ...]:
    """Nodes whose agent spoke just now: those of the same attempt first."""
    own = attempt.pk if attempt is not None else None
    ordered = sorted(rows.speaking, key=lambda pair: (pair[0] != own, pair[1]))
    return tuple(dict.fromkeys(name for _, name in ordered))


def _controls(attempt: Attempt | None, rows: Rows) -> tuple[str, ...]:
    """Nodes that should answer a probe: where agents speak first, then what Slurm believes up."""
    return tuple(dict.fromkeys([*(n for n in _witnesses(attempt, rows) if n in rows.nodes), *rows.up]))


def _attempt(job: TrainingJob, attempts: list[Attempt], rows: Rows, counts_from: float) -> AttemptFact:
    attempt = attempts[-1]
    before = [earlier.step for earlier in attempts[:-1] if earlier.step is not None]
    reports = rows.agents.get(attempt.pk, [])
    return AttemptFact(
        generation=attempt.generation,
        state=attempt.state,
        slurm_job_id=attempt.slurm_job_id,
        restart_count=attempt.restart_count,
        nodes=tuple(attempt.nodes),
        agents=tuple(_agent(report, rows, counts_from) for report in reports),
        exits=tuple(RankExit(**{key: e[key] for key in EXIT_KEYS if key in e}) for e in attempt.exits),
        step=attempt.step,
        start_step=attempt.start_step,
        world_size=attempt.world_size,
        first_step_seen=attempt.first_step_at is not None,
        first_new_step_seen=attempt.first_new_step_at is not None,
        finished=attempt.finished_at is not None,
        early=attempt.early,
        **progress.saves(attempt.saving),
        replay_expected=bool(before) and max(before) > (attempt.start_step or 0),
        launched_at=attempt.launched_at.timestamp() if attempt.launched_at is not None else None,
        counts_from=_excused_until(job, attempt, rows),
        ranks=progress.ranks(reports),
        learned=progress.learned(attempts, reports, _leader_before(attempts, rows)),
        **progress.losses(attempt.losses),
        work=tuple(report.work for report in reports if report.work),
        **_checks(attempt.checks),
    )


def _excused_until(job: TrainingJob, attempt: Attempt, rows: Rows) -> float:
    """What agents say of standing still is true whoever watched: only expected silence counts."""
    nodes = (rows.excused.get(name, 0.0) for name in attempt.nodes)
    return max(job.excused_at.timestamp() if job.excused_at is not None else 0.0, *nodes, 0.0)


def _leader_before(attempts: list[Attempt], rows: Rows) -> AgentReport | None:
    return rows.leaders_before.get(attempts[-2].pk) if len(attempts) > 1 else None


def _agent(report: AgentReport, rows: Rows, counts_from: float) -> AgentFact:
    counts_from = max(counts_from, rows.excused.get(report.node, 0.0))
    return AgentFact(report.node, report.received_at.timestamp(), report.state, report.leader, counts_from)


def _checks(checks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`checks`: {rank: {stage: {"outcome", "checks": [{"name", "outcome"}]}}}."""
    failed = {
        check["name"]
        for stages in checks.values()
        for stage in stages.values()
        for check in stage["checks"]
        if check["outcome"] == "FAIL"
    }
    failed |= {
        name
        for stages in checks.values()
        for name, stage in stages.items()
        if stage["outcome"] == "FAIL" and not any(c["outcome"] == "FAIL" for c in stage["checks"])
    }
    return {
        "checks_passed": _ranks_passed(checks, "before_first_step"),
        "checks_failed": tuple(sorted(failed)),
        "replay_passed": _ranks_passed(checks, "replay"),
    }


def _ranks_passed(checks: Mapping[str, Mapping[str, Any]], stage: str) -> int:
    return sum(1 for stages in checks.values() if stages.get(stage, {}).get("outcome") in PASSED)
