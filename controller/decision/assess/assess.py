"""assess(): one case -> one assessment. Pure; the order in which evidence came makes no difference."""

from dataclasses import replace

from controller.decision.assess.merge import merged, opinions
from controller.decision.assess.opinion import Opinion
from controller.decision.assess.view import View, view_of
from controller.decision.assessment import HIGH, MEDIUM, Assessment
from controller.decision.evidence import Case
from controller.decision.meanings import Knowledge

HARDWARE = frozenset({"gpu_hardware", "node_failure", "fabric"})


def assess(case: Case, knowledge: Knowledge) -> Assessment:
    """Says what the evidence supports; "unknown" is an answer. Never raises for any case."""
    view = view_of(case, knowledge)
    found = opinions(view)
    if (done := _finished(view, found)) is not None:
        found = [done, *(o for o in found if o.charges)]
    return _settled(case, merged(view, found))


def _finished(view: View, found: list[Opinion]) -> Opinion | None:
    """A run that is complete did not fail, whatever its teardown said. By the trainer's word alone only where what
    came after is a hang or an abort: an error could have cut the last save short."""
    ended = view.of("trainer.finished")
    sure = view.case.finished
    only_teardown = not found or (found[0].verdict in ("hang_unattributed", "unknown") and not found[0].charges)
    if not sure and not (ended and only_teardown):
        return None
    after = tuple(e for o in found if not o.charges for e in o.proof)
    notes = ("the run is complete; its teardown did not end well",) if after else ("the run is complete",)
    return Opinion(
        "none", HIGH if sure else MEDIUM,
        "the run is complete" + ("; what followed happened in its teardown" if after else "")
        + ("" if sure else ", by the trainer's own word: see that the final checkpoint is there"),
        (*ended, *after), requeue=False, budget="none", notes=notes,
    )  # fmt: skip


def _settled(case: Case, found: Assessment) -> Assessment:
    """A cancelled job is not started again, a job that still trains is not ended for anything but a drain."""
    if case.cancelled_by_user and found.requeue is not False and isinstance(found.requeue, bool):
        return replace(found, requeue=False, requeue_limit=None, stop=found.stop or "the job was cancelled")
    return found
