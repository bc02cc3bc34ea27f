"""One handler for each action kind. A handler makes one turn: look, write at most what its stage names, look again."""

from collections.abc import Callable

from controller.decision import actions
from controller.remediation.handlers import give_back, hold, release, requeue, tell
from controller.remediation.results import Result
from controller.remediation.turn import Turn

HANDLERS: dict[str, Callable[[Turn], Result]] = {
    actions.HOLD_NODE: hold.handle,
    actions.REQUEUE: requeue.handle,
    actions.NOTIFY: tell.handle,
    actions.RELEASE_NODE: release.handle,
    actions.GIVE_BACK: give_back.handle,
}
