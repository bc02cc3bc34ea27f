"""Where a line begins and ends. Lines end with LF, CR (a progress bar's rewritten line is a line) or both."""

# A longer line is cut: what stands behind is not looked at.
LINE_BYTES = 16 * 1024


def bounds(data: bytes, place: int, returns: bool) -> tuple[int, int]:
    """Of the line around `place`; `returns`: whether there is any CR in `data`."""
    start = data.rfind(b"\n", 0, place) + 1
    end = data.find(b"\n", place)
    if end < 0:
        end = len(data)
    if returns:
        start = max(start, data.rfind(b"\r", start, place) + 1)
        inner = data.find(b"\r", place, end)
        if inner >= 0:
            end = inner
    return start, end


def first_end(data: bytes) -> int:
    """Where the first end of a line is; behind the data where there is none."""
    ends = [place for place in (data.find(b"\n"), data.find(b"\r")) if place >= 0]
    return min(ends, default=len(data))


def last_end(data: bytes) -> int:
    """Behind the last end of a line; 0 where there is none."""
    return max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
