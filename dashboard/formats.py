"""Numbers and times as the pages print them. `–` for none; 0 only for zero; times in UTC."""

import math
import re
from datetime import UTC, datetime

NONE = "–"
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def whole(value: int | float | None) -> str:
    return NONE if value is None else f"{round(value):,}"


def decimals(value: float | None, digits: int = 3) -> str:
    if value is None:
        return NONE
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("infinity" if value > 0 else "minus infinity")
    if value != 0 and abs(value) < 10**-digits:
        return f"{value:.2e}"
    return f"{value:,.{digits}f}"


def percent(share: float | None, digits: int = 1) -> str:
    return NONE if share is None else f"{share * 100:.{digits}f} %"


def size(count: int | None) -> str:
    if count is None:
        return NONE
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024 or unit == "PiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def seconds(value: float | None) -> str:
    """Short times with a decimal, for phases and costs."""
    if value is None:
        return NONE
    if value < 60:
        return f"{value:.1f} s" if value < 10 or value % 1 else f"{value:.0f} s"
    return duration(value)


def duration(value: float | None) -> str:
    """The two largest units: `3 d 2 h`, `1 h 12 min`, `8 min 55 s`, `24 s`."""
    if value is None:
        return NONE
    total = max(round(value), 0)
    days, rest = divmod(total, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {secs:02d} s" if secs else f"{minutes} min"
    return f"{secs} s"


def units(count: int, unit_s: float) -> str:
    """Exact, for sums: `21 h 01 m 30 s` in seconds, `21.4 s` or `2 m 03.4 s` in tenths."""
    if unit_s < 1:
        whole_s, tenth = divmod(count, round(1 / unit_s))
        minutes, secs = divmod(whole_s, 60)
        return f"{minutes} m {secs:02d}.{tenth} s" if minutes else f"{secs}.{tenth} s"
    hours, rest = divmod(count, 3600)
    minutes, secs = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes:02d} m {secs:02d} s"
    return f"{minutes} m {secs:02d} s" if minutes else f"{secs} s"


def clock(at: datetime | None) -> str:
    return NONE if at is None else at.astimezone(UTC).strftime("%H:%M:%S")


def clock_tenths(at: float) -> str:
    tenths = round(at * 10)
    return datetime.fromtimestamp(tenths // 10, tz=UTC).strftime("%H:%M:%S") + f".{tenths % 10}"


def day_and_time(at: datetime | None, near: datetime | None = None) -> str:
    """`Sun 14:15:42`, with the date when it is more than six days from `near`."""
    if at is None:
        return NONE
    at = at.astimezone(UTC)
    if near is not None and abs((near - at).total_seconds()) > 6 * 86400:
        return f"{at.day} {at.strftime('%b %H:%M')}"
    return at.strftime("%a %H:%M:%S")


def date_long(at: datetime) -> str:
    at = at.astimezone(UTC)
    return f"{at.strftime('%A')} {at.day} {at.strftime('%B')}"


def exact(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def sentence(text: str) -> str:
    """Begins with a capital, unless its first word is a name: `gpu1: agent silent` stays as it is."""
    first = text.split(" ", 1)[0]
    return text[:1].upper() + text[1:] if first.isalpha() else text


_HEX_FLOAT = re.compile(r"-?0x[0-9a-f](?:\.[0-9a-f]*)?p[+-]?\d+", re.IGNORECASE)


def recorded(text: str) -> str:
    """A checked value for reading: exact binary floats in decimal, a list of one without its brackets."""
    text = _HEX_FLOAT.sub(lambda match: f"{float.fromhex(match[0]):.5g}", text)
    single = re.fullmatch(r"\['?([^\[\]',]*)'?\]", text)
    return single[1] if single else text


def plain(text: str) -> str:
    """Log text without colour codes and other control characters, which could hide or reorder what is read."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
