"""From a finding to a verdict: who is to blame, how sure, what to do, and which budget pays.

Each cause has a rule. Where the evidence says whose fault it was, its word on nodes, requeue and budget takes the
place of the rule's (`refine`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from controller.decision import advice, budget, refine, relaunch, walk_back
from controller.decision import findings as f
from controller.decision.assessment import Assessment
from controller.decision.facts import SubjectFacts
from controller.decision.findings import Clue, Finding
from controller.decision.policy import Policy
from controller.decision.relaunch import Judgement

REQUEUE = "requeue"
ASK = "ask"


@dataclass(frozen=True)
class Verdict:
    """`hold` and `exclude` are node names; `budget` is infrastructure, process, user, time_limit or none; `clues` carry
    it. `stop`: the sentence for a person when nothing is to be requeued (the holds stand all the same). `delay_s`: how
    long the requeue waits. `restarts`: Slurm's count of the start that was hit. `assessment`: what the diagnosis said
    besides, for the incident's row; empty where there was no evidence to ask it about."""

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
    restarts: int = 0
    stop: str = ""
    delay_s: float = 0.0
    assessment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    headline: str
    confidence: float
    remedy: str
    budget: str
    hold: bool = False
    exclude: bool = False
    stop: str = ""


RULES: dict[str, Rule] = {
    f.NODE_LOST: Rule("Node lost", 0.95, REQUEUE, "infrastructure", hold=True, exclude=True),
    f.NODE_DOWN: Rule("Node down in Slurm", 0.9, REQUEUE, "infrastructure", hold=True, exclude=True),
    f.NODE_SIGN: Rule("Hardware fault", 0.9, REQUEUE, "infrastructure", hold=True, exclude=True),
    # No node is named, so none is held or excluded.
    f.NODE_FAILED: Rule("Slurm ended the job for a node failure", 0.6, REQUEUE, "infrastructure"),
    # Many nodes at once are one incident of what joins them: keep this job away from them, blame none.
    f.MANY_NODES: Rule("Many nodes lost at once", 0.5, REQUEUE, "infrastructure", exclude=True),
    f.PROCESS_DIED: Rule("A process died", 0.7, REQUEUE, "process"),
    f.USER_ERROR: Rule("The program ended with an error", 0.8, ASK, "user"),
    # Nobody's fault, and Slurm does not start it again: the run goes on where it was.
    f.TIME_LIMIT: Rule("Time limit reached", 1.0, REQUEUE, "time_limit"),
    f.DEADLINE: Rule("Deadline passed", 1.0, ASK, "none"),
    f.PREEMPTED: Rule("Preempted and not queued again", 1.0, ASK, "none"),
    # `relaunch` says when a node is held for it, and when a person is asked.
    f.SLURM_INFRA: Rule("Launch failed", 0.9, REQUEUE, "infrastructure", exclude=True),
    f.START_FAILED: Rule("Ended as it began", 0.5, REQUEUE, "infrastructure", exclude=True),
    f.LAUNCH_LIMIT: Rule("Slurm stopped trying to start the job", 0.9, REQUEUE, "infrastructure", exclude=True),
    # Most hangs are software: nobody is held or kept away for one.
    f.HANG: Rule("No progress", 0.4, REQUEUE, "infrastructure"),
    # By itself it accuses nobody, and ends nothing: the run goes on beside the question.
    f.NOT_FINITE: Rule(
        "The loss is no number any more",
        0.6,
        ASK,
        "user",
        stop="the job goes on and nothing was done. Stop it, or go back to a checkpoint from before; if it happens "
        "again at the same place on other nodes, it is the program or its data",
    ),
    f.SAVES_FAIL: Rule(
        "Saves fail",
        0.9,
        ASK,
        "none",
        stop="the job goes on and nothing was done. Until a save is committed, a fault costs everything since the last "
        "one: make room or mend the storage, and ask for a save on the page",
    ),
    # Once more from the checkpoint before: `walk_back` says when a person is asked instead.
    f.VERIFICATION_FAILED: Rule("The resumed run is not the same run", 1.0, REQUEUE, "none"),
    f.INCOMPLETE: Rule(
        "Ended before its last step",
        0.9,
        ASK,
        "none",
        stop="Slurm calls it completed; nothing was requeued. If the run is complete all the same, dismiss the "
        "incident; else mend the script and requeue it",
    ),
    # Of these the evidence says who is held and kept away from.
    f.GPU_HARDWARE: Rule("GPU hardware failed", 0.9, REQUEUE, "infrastructure"),
    f.NODE_FAULT: Rule("A node failed", 0.9, REQUEUE, "infrastructure"),
    f.FABRIC: Rule("The network between GPUs failed", 0.9, REQUEUE, "infrastructure"),
    f.HOST_OOM: Rule("The host's memory ran out", 0.9, REQUEUE, "user"),
    f.GPU_OOM: Rule("The GPU's memory ran out", 0.9, ASK, "user"),
    f.CONFIG: Rule("The job's set-up is wrong", 0.6, ASK, "user"),
    f.DATA_OR_STORAGE: Rule("Data or storage failed", 0.6, REQUEUE, "infrastructure"),
}
BUDGETS = {"infra": "infrastructure", "user": "user", "none": "none"}


def diagnose(subject: SubjectFacts, finding: Finding, now: float, policy: Policy) -> Verdict:
    """Every cause has a rule (tested), so this never guesses. A node of a required-nodes list is never excluded:
    the job could not run at all, so it asks instead."""
    result = refine.refined(subject, finding, now, policy)
    verdict = _by_rule(subject, result.finding, now, policy)
    found = result.assessment
    if found is None:
        return verdict
    verdict = replace(verdict, assessment=refine.told(found))
    return _by_evidence(subject, verdict, found) if result.sure else verdict


def _by_evidence(subject: SubjectFacts, verdict: Verdict, found: Assessment) -> Verdict:
    pinned = _pinned(subject, found.exclude)
    spent = budget.over_limit(found, subject.spent)
    stop = found.stop if found.requeue is False else spent or ""
    return replace(
        verdict,
        confidence=refine.confidence(found),
        remedy=ASK if pinned or found.requeue is False or spent else REQUEUE,
        budget=BUDGETS[found.budget],
        hold=found.drain,
        exclude=() if pinned else found.exclude,
        stop=advice.required_nodes(subject.slurm, pinned) if pinned else stop,
        delay_s=found.requeue_delay_s,
    )


def _by_rule(subject: SubjectFacts, finding: Finding, now: float, policy: Policy) -> Verdict:
    rule = RULES[finding.cause]
    pinned = _pinned(subject, finding.suspects) if rule.exclude else []
    names = ", ".join(finding.suspects)
    judged = _judged(subject, finding, now, policy)
    return Verdict(
        cause=finding.cause,
        summary=f"{rule.headline}: {names}" if names else rule.headline,
        reason=finding.reason,
        confidence=rule.confidence,
        remedy=ASK if pinned else rule.remedy,
        budget=rule.budget,
        suspects=finding.suspects,
        ranks=finding.ranks,
        hold=finding.suspects if rule.hold else judged.hold,
        exclude=finding.suspects if rule.exclude and not pinned else (),
        clues=finding.clues,
        fault_at=finding.fault_at,
        last_good_at=finding.last_good_at,
        restarts=subject.restarts_hit if finding.restarts is None else finding.restarts,
        stop=advice.required_nodes(subject.slurm, pinned) if pinned else judged.stop or rule.stop,
        delay_s=judged.delay_s,
    )


def _judged(subject: SubjectFacts, finding: Finding, now: float, policy: Policy) -> Judgement:
    """What a cause with a history of its own adds to its rule."""
    if finding.cause in relaunch.CAUSES:
        return relaunch.judge(subject, finding, now, policy)
    return walk_back.judge(subject) if finding.cause == f.VERIFICATION_FAILED else Judgement()


def _pinned(subject: SubjectFacts, names: Iterable[str]) -> list[str]:
    required = set(subject.slurm.required_nodes) if subject.slurm is not None else set()
    return sorted(required & set(names))
