"""notify: one message for one incident. The action's row is the delivery's record."""

from controller.notify import catalogue, log_channel
from controller.remediation.results import Done, Result
from controller.remediation.turn import Turn


def handle(turn: Turn) -> Result:
    """A crash between sending and recording sends twice: better than never. `key` lets a receiver see that."""
    message = catalogue.incident_message(turn.incident)
    log_channel.send(message, key=turn.action.key)
    return Done(f"told: {message.subject}")
