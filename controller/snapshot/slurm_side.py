"""Slurm's word as evidence: what its view says of nodes and job, and what we remember of these nodes ourselves.

What Relume wrote into Slurm itself is no evidence: its own drain must not prove the next one.
"""

from collections.abc import Iterable, Mapping

from controller.decision.evidence import CONTROLLER, JOB, SLURM, Evidence, Scalar
from controller.decision.facts import NodeFact, SlurmJobFact
from controller.models import Incident, TrainingJob
from controller.snapshot.remembered import Memory, accused, verdict_of

OURS = "relume:"
BAD_FLAGS = frozenset({"DRAIN", "FAIL", "NOT_RESPONDING"})
# What slurmctld writes when it drains a node by itself (tried on 22.05).
UNKILLABLE = "kill task failed"
LAUNCH = ("prolog error", "batch job complete failure", "slurmdspooldir is full")
HARDWARE = frozenset({"gpu_hardware", "node_failure", "fabric"})
# Families of signs that speak of a machine, and what of their details a later judge compares.
MACHINE = frozenset(
    {
        "xid",
        "sxid",
        "gpu",
        "cuda",
        "nccl",
        "gloo",
        "nic",
        "ib",
        "link",
        "pcie",
        "memory",
        "cpu",
        "kernel",
        "disk",
        "slurm",
    }
)
DETAILS = ("pci", "gpu_uuid", "location", "peer", "remote_gid")
MOST_CODES = 4
MOST_REMEMBERED = 100
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


def history(
    memory: Memory, names: Iterable[str], job: TrainingJob, before: float, except_for: int | None
) -> list[Evidence]:
    """What earlier incidents, of any job, said of these nodes' hardware: the controller's own memory, each proof line
    once, with its code. `before`: what this job's incidents said since then belongs to its present attempt and is not
    history, nor is `except_for`, its live one; another job's word is, whenever it came. Nothing of before a node was
    put back into service. `own` marks what is no second voice: other jobs of the same owner (one program may be wrong
    twice, and one user may lie twice), and jobs whose owner Slurm has not confirmed."""
    wanted, found = set(names), list[Evidence]()
    for incident in memory.incidents:
        at = incident.detected_at.timestamp()
        own = incident.training_job.run_id == job.run_id
        if incident.pk == except_for or (own and at >= before):
            continue
        for name in sorted(wanted & accused(incident)):
            if memory.settled.get(name, 0.0) < at:
                found += _remembered(incident, name, memory.proof.get(incident.pk, ()), job.owner)
    return found[:MOST_REMEMBERED]


def _remembered(incident: Incident, name: str, proof: Iterable[Evidence], owner: str) -> list[Evidence]:
    """One for each code that was said of the node; where no line is kept, the verdict on its hardware. What a job says
    that Slurm said is not Slurm's word."""
    lines: dict[str, Evidence] = {}
    for line in proof:
        if line.node == name and line.family in MACHINE and not (line.family == SLURM and line.origin == JOB):
            lines.setdefault(line.code, line)
    if lines:
        return [_told(incident, name, owner, code, line) for code, line in sorted(lines.items())[:MOST_CODES]]
    xid, verdict = incident.assessment.get("xid"), verdict_of(incident)
    if verdict not in HARDWARE or name not in incident.suspects:
        return []
    return [_told(incident, name, owner, f"xid.{xid}" if isinstance(xid, int) else verdict, None)]


def _told(incident: Incident, name: str, owner: str, code: str, line: Evidence | None) -> Evidence:
    job = incident.training_job
    run_id = job.run_id
    attrs: dict[str, Scalar] = {key: line.attrs[key] for key in DETAILS if line is not None and key in line.attrs}
    attrs |= {
        "job": run_id,
        "error": (line.raw if line is not None else incident.summary)[:200],
        "of": code,
        "owner": job.owner,
    }
    attrs |= {"own": True} if job.owner == owner or not job.owner_confirmed else {}
    fault = incident.fault_at or incident.detected_at
    return Evidence(
        id=f"history:{incident.pk}:{code}:{name}"[:64],
        code="history.error",
        layer="node",
        source="history",
        origin=CONTROLLER,
        raw=f"job {run_id} on {name}: {line.raw if line is not None else incident.summary}"[:2048],
        at=line.at if line is not None and line.at is not None else fault.timestamp(),
        node=name,
        attrs=attrs,
    )
