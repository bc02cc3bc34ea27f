"""From a finding to a verdict: who is to blame, how sure, what to do, and which budget pays.

The spine's findings each name one cause, so this is a table; weighing several layers against each other comes with the
sensor (issue "Diagnosis").
"""

from dataclasses import dataclass

from controller.decision import findings as f
from controller.decision.facts import SubjectFacts
from controller.decision.findings import Clue, Finding

REQUEUE = "requeue"
ASK = "ask"


@dataclass(frozen=True)
class Verdict:
    """`hold` and `exclude` are node names; `budget` is infrastructure, process, user or none; `clues` carry it."""

    cause: str
    summary: str
    reason: str
    confidence: float
    remedy: str
    budget: str
    suspects: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    hold: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    clues: tuple[Clue, ...] = ()
    fault_at: float | None = None
    last_good_at: float | None = None


@dataclass(frozen=True)
class Rule:
    headline: str
    confidence: float
    remedy: str
    budget: str
    hold: bool = False
    exclude: bool = False


RULES: dict[str, Rule] = {
    f.NODE_LOST: Rule("Node lost", 0.95, REQUEUE, "infrastructure", hold=True, exclude=True),
    f.NODE_DOWN: Rule("Node down in Slurm", 0.9, REQUEUE, "infrastructure", hold=True, exclude=True),
    # No node is named, so none is held or excluded.
    f.NODE_FAILED: Rule("Slurm ended the job for a node failure", 0.6, REQUEUE, "infrastructure"),
    # Many nodes at once are one incident of what joins them: keep this job away from them, blame none.
    f.MANY_NODES: Rule("Many nodes lost at once", 0.5, REQUEUE, "infrastructure", exclude=True),
    f.PROCESS_DIED: Rule("A process died", 0.7, REQUEUE, "process"),
    f.USER_ERROR: Rule("The program ended with an error", 0.8, ASK, "user"),
    f.TIME_LIMIT: Rule("Time limit reached", 1.0, ASK, "none"),
    f.VERIFICATION_FAILED: Rule("The resumed run is not the same run", 1.0, ASK, "none"),
}


def diagnose(subject: SubjectFacts, finding: Finding) -> Verdict:
    """Every cause has a rule (tested), so this never guesses. A node of a required-nodes list is never excluded:
    the job could not run at all, so it asks instead."""
    rule = RULES[finding.cause]
    required = set(subject.slurm.required_nodes) if subject.slurm is not None else set()
    pinned = sorted(required & set(finding.suspects)) if rule.exclude else []
    names = ", ".join(finding.suspects)
    headline = f"{rule.headline}: {names}" if names else rule.headline
    reason = finding.reason + (f"; the job requires {', '.join(pinned)} by name" if pinned else "")
    return Verdict(
        cause=finding.cause,
        summary=headline,
        reason=reason,
        confidence=rule.confidence,
        remedy=ASK if pinned else rule.remedy,
        budget=rule.budget,
        suspects=finding.suspects,
        ranks=finding.ranks,
        hold=finding.suspects if rule.hold else (),
        exclude=finding.suspects if rule.exclude and not pinned else (),
        clues=finding.clues,
        fault_at=finding.fault_at,
        last_good_at=finding.last_good_at,
    )
