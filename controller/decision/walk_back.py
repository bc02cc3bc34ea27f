"""After a resume that was not the same run: once more, from the checkpoint before; the second time a person is asked.

The ranks set the checkpoint aside themselves (its folder says why), so the next attempt takes the one before. Where an
attempt failed like this right before, or no agent tells what was tried, another start would only repeat it.
"""

from controller.decision.facts import SubjectFacts
from controller.decision.relaunch import Judgement

OUTCOME = "verification_failed"
AGAIN = "the attempt before failed its verification too: no checkpoint is tried after that; nothing was requeued"
UNKNOWN = "a person must look: no agent told which checkpoint it was; nothing was requeued"


def judge(subject: SubjectFacts) -> Judgement:
    """For a failed verification."""
    if subject.attempt is None:
        return Judgement(stop=UNKNOWN)
    before = subject.attempts_before[-1:]
    return Judgement(stop=AGAIN if before and before[0].outcome == OUTCOME else "")
