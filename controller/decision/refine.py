"""What the evidence says of a fault that a detector found: whose it is, whom to keep away from, which budget pays.

A detector says that something is wrong and when. Here the diagnosis is asked about the same facts. It may name a
culprit where the detector knows none; it weakens nothing that a detector proved by itself: a lost node stays lost, a
failed launch keeps its waits, a check that failed still stops the job. Where it is not sure, only its lines are kept.
"""

from dataclasses import dataclass, replace
from typing import Any

from controller.decision import findings as f
from controller.decision.assess import assess
from controller.decision.assessment import CONFIDENCE, LOW, Assessment
from controller.decision.evidence import Evidence
from controller.decision.facts import SubjectFacts
from controller.decision.findings import Clue, Finding, clue_of
from controller.decision.live_case import case_of
from controller.decision.policy import Policy
from controller.decision.progress_evidence import SOURCE

# Detectors that know how it ended and not whose fault it was.
OPEN = frozenset({f.PROCESS_DIED, f.USER_ERROR, f.HANG, f.NODE_FAILED})
# Causes of the diagnosis by its verdict; what is not here keeps the detector's cause.
CAUSE_OF_VERDICT = {
    "gpu_hardware": f.GPU_HARDWARE,
    "node_failure": f.NODE_FAULT,
    "fabric": f.FABRIC,
    "host_oom": f.HOST_OOM,
    "gpu_oom": f.GPU_OOM,
    "user_code": f.USER_ERROR,
    "config": f.CONFIG,
    "data_or_storage": f.DATA_OR_STORAGE,
    "resume_fault": f.DATA_OR_STORAGE,
    "hang_unattributed": f.HANG,
}
MOST_CLUES = 60
STACKS = "stacks"  # source of the agents' looks at ranks that stand still


@dataclass(frozen=True)
class Refined:
    """`finding`: with the diagnosis's cause, suspects and lines. `sure`: whether its `assessment` decides what is
    done; else it is only told."""

    finding: Finding
    assessment: Assessment | None = None
    sure: bool = False


def refined(subject: SubjectFacts, finding: Finding, now: float, policy: Policy) -> Refined:
    """A case without evidence, or a policy that knows no meanings, leave everything as it was."""
    case = case_of(subject, now, policy)
    if not case.evidence or not policy.knowledge.rows:
        return Refined(finding)
    found = assess(case, policy.knowledge)
    own = {item.id for item in case.evidence if item.source == SOURCE}
    if got_on := found.verdict == "none" and bool(found.proof) and own.issuperset(found.proof):
        found = replace(found, proof=())
    known = {clue.ref for clue in finding.clues if clue.ref}
    clues = tuple(clue for clue in _clues(case.evidence, found, now) if clue.ref not in known)
    with_lines = replace(finding, clues=(*finding.clues, *clues)[: max(MOST_CLUES, len(finding.clues))])
    if got_on:  # that nothing was wrong with the losses is no word on why it ended
        return Refined(with_lines)
    cause = CAUSE_OF_VERDICT.get(found.verdict)
    if cause is None or not _open(finding, found) or not _decides(found):
        return Refined(with_lines, found)
    return Refined(
        replace(
            with_lines,
            cause=cause,
            reason=f"{found.why} ({finding.reason})",
            suspects=found.suspect_nodes,
            ranks=found.suspect_ranks or finding.ranks,
            fault_at=_fault_at(finding, found),
        ),
        found,
        sure=True,
    )


def told(found: Assessment) -> dict[str, Any]:
    """What an incident keeps of it besides the verdict's own columns (docs/formats.md, section 10)."""
    return {
        "verdict": found.verdict,
        "confidence": found.confidence,
        "why": found.why,
        "xid": found.xid,
        "suspect_gpu": found.suspect_gpu,
        "drain": list(found.drain),
        "exclude": list(found.exclude),
        "withheld": list(found.withheld),
        "node_actions": dict(found.node_actions),
        "follow_up": list(found.follow_up),
        "notes": list(found.notes),
    }


def confidence(found: Assessment) -> float:
    return CONFIDENCE[found.confidence]


def _open(finding: Finding, found: Assessment) -> bool:
    """A run that goes on is ended for its losses only where a second sign names the node."""
    if finding.cause == f.NOT_FINITE:
        return found.verdict == "gpu_hardware" and bool(found.suspect_nodes)
    return finding.cause in OPEN


def _decides(found: Assessment) -> bool:
    """A guess changes nothing that is done, unless it rests on more than one kind of sign."""
    return found.confidence != LOW


def _fault_at(finding: Finding, found: Assessment) -> float | None:
    """The earlier of the two, not before the last good sign."""
    at = finding.fault_at
    if found.onset is None or at is None or found.onset >= at:
        return at
    return max(found.onset, finding.last_good_at) if finding.last_good_at is not None else found.onset


def _clues(evidence: tuple[Evidence, ...], found: Assessment, now: float) -> tuple[Clue, ...]:
    """Proof first, then what clears, then consequences, then how the run got on and where its ranks stand; the rest
    decided nothing."""
    by_id = {item.id: item for item in evidence}
    told = {*found.proof, *found.clears, *found.cascade}
    progress = [item.id for item in evidence if item.source in (SOURCE, STACKS) and item.id not in told]
    stances = [(found.proof, "accuses"), (found.clears, "clears"), (found.cascade, "cascade"), (progress, "context")]
    return tuple(
        clue_of(by_id[name], stance, now) for names, stance in stances for name in names if name in by_id
    )[:MOST_CLUES]  # fmt: skip
