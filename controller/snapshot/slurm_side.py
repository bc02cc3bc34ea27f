"""Slurm's word as evidence: what its view says of nodes and job, and what we remember of these nodes ourselves.

What Relume wrote into Slurm itself is no evidence: its own drain must not prove the next one.
"""

from collections.abc import Iterable, Mapping

from controller.decision.evidence import CONTROLLER, SLURM, Evidence
from controller.decision.facts import NodeFact, SlurmJobFact
from controller.models import Incident

OURS = "relume:"
BAD_FLAGS = frozenset({"DRAIN", "FAIL", "NOT_RESPONDING"})
# What slurmctld writes when it drains a node by itself (tried on 22.05).
UNKILLABLE = "kill task failed"
LAUNCH = ("prolog error", "batch job complete failure", "slurmdspooldir is full")
HARDWARE = frozenset({"gpu_hardware", "node_failure", "fabric"})
QUIET_JOB = frozenset({"PENDING", "RUNNING", "COMPLETED"})


def of_nodes(nodes: Mapping[str, NodeFact], names: Iterable[str], view_at: float | None) -> list[Evidence]:
    found = []
    for name in sorted(set(names) & nodes.keys()):
        node = nodes[name]
        if node.reason.startswith(OURS) or not (node.down or node.flags & BAD_FLAGS):
            continue
        found += _of_node(node, node.reason_at if node.reason_at is not None else view_at)
    return found


def _of_node(node: NodeFact, at: float | None) -> list[Evidence]:
    state = "+".join([node.base, *sorted(node.flags)])
    raw = f"{node.name} {state} {node.reason}".strip()
    attrs = {"state": state, "reason": node.reason, "reason_user": node.reason_user}
    found = [_evidence("slurm.node_state", f"node:{node.name}:{state}:{at}", raw, at, node.name, attrs)]
    words = node.reason.strip().lower()
    if words.startswith(UNKILLABLE):
        found.append(_evidence("slurm.step_unkillable", f"unkillable:{node.name}:{at}", raw, at, node.name))
    elif words.startswith(LAUNCH):
        text: dict[str, str | int] = {"text": node.reason, "host": node.name}
        found.append(_evidence("slurm.launch_failed", f"launch:{node.name}:{at}", raw, at, node.name, text))
    return found


def of_job(job: SlurmJobFact | None, view_at: float | None) -> list[Evidence]:
    if job is None or (job.base in QUIET_JOB and job.held_by is None):
        return []
    attrs: dict[str, str | int] = {"state": job.base, "reason": job.reason, "restarts": job.restarts}
    if job.exit_code is not None:
        attrs["exit_code"] = job.exit_code
    raw = f"job {job.job_id} {'+'.join([job.base, *sorted(job.flags)])} {job.reason} Restarts={job.restarts}"
    at = job.end_at if job.end_at is not None else view_at
    return [_evidence("slurm.job_state", f"job:{job.job_id}:{job.restarts}:{job.base}", raw, at, None, attrs)]


def _evidence(
    code: str,
    key: str,
    raw: str,
    at: float | None,
    node: str | None,
    attrs: Mapping[str, str | int] | None = None,
) -> Evidence:
    return Evidence(f"slurm:{key}"[:64], code, "slurm", "slurm", SLURM, raw, at, node, attrs=dict(attrs or {}))


def history(recent: Iterable[Incident], names: Iterable[str], before: float, except_for: int | None) -> list[Evidence]:
    """Earlier incidents, of any job, that ended with a hardware verdict about one of these nodes: the controller's own
    memory. `before`: those that belong to the present attempt are not history; `except_for`: nor is the live one."""
    wanted, found = set(names), []
    for incident in recent:
        verdict = incident.assessment.get("verdict") or incident.cause
        if verdict not in HARDWARE or incident.pk == except_for or incident.detected_at.timestamp() >= before:
            continue
        for name in sorted(wanted & set(incident.suspects)):
            found.append(_remembered(incident, name, verdict))
    return found


def _remembered(incident: Incident, name: str, verdict: str) -> Evidence:
    xid = incident.assessment.get("xid")
    attrs: dict[str, str | int] = {"job": incident.training_job.run_id, "error": incident.summary[:200]}
    attrs["of"] = f"xid.{xid}" if isinstance(xid, int) else verdict
    return Evidence(
        id=f"history:{incident.pk}:{name}"[:64],
        code="history.error",
        layer="node",
        source="history",
        origin=CONTROLLER,
        raw=f"job {incident.training_job.run_id} on {name}: {incident.summary}"[:2048],
        at=(incident.fault_at or incident.detected_at).timestamp(),
        node=name,
        attrs=attrs,
    )
