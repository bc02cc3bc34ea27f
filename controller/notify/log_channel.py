"""Messages as one structured log line each: the channel that is always there."""

from dataclasses import asdict

import structlog

from controller.notify.catalogue import Message

log = structlog.get_logger("notify")


def send(message: Message, *, key: str) -> None:
    log.warning("notify", key=key, **asdict(message))
