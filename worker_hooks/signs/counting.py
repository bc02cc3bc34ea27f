"""What a counter of hardware has counted between two readings."""

_WIDTHS = (32, 64)


def counted(before: int, now: int) -> int:
    """Events between two readings. A smaller number than before is an overflow where the first stood near the end of a
    width and the second near its beginning; else the counter was set back, and what it shows has come since."""
    if now >= before:
        return now - before
    for bits in _WIDTHS:
        whole = 1 << bits
        if whole * 3 // 4 <= before < whole and now < whole // 4:
            return now + whole - before
    return max(0, now)


def per_second(before: int, now: int, seconds: float) -> float:
    return counted(before, now) / seconds if seconds > 0 else 0.0
