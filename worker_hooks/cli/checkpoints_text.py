"""How the `checkpoints` commands write things for people: tables, sizes, ages. No colours: logs get this too."""

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Columns as wide as what is in them; the last one may be long."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def size(count: int) -> str:
    """1536 -> `1.5 KiB`."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def age(seconds: float | None) -> str:
    """The largest unit that fits; `-` for unknown. A time in the future is said: clocks differ between nodes."""
    if seconds is None:
        return "-"
    if seconds < -60:
        return "in the future"
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{max(0, round(seconds))} s"


def number(value: int | None) -> str:
    return "-" if value is None else str(value)


def plain(text: str) -> str:
    """Names and reasons from disk, without anything that would move a terminal's cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)
