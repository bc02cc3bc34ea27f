"""What one turn of a handler may say."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Done:
    """The effect is there: it was looked at after the act."""

    text: str


@dataclass(frozen=True)
class Refuse:
    """It cannot or must not be done. Nobody tries again by itself."""

    text: str


@dataclass(frozen=True)
class Wait:
    """Look again in `seconds`; `text` says what for."""

    seconds: float
    text: str


Result = Done | Refuse | Wait
