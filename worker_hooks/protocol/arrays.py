"""Which tasks an array has: the text after `sbatch --array`, as Slurm reads it. Standard library only."""

import re
from dataclasses import dataclass

MAX_CHARS = 1 << 16
_LIMIT = re.compile(r"%\d*$", re.ASCII)
_ITEM = re.compile(r"\[?\s*\+?(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?\]?", re.ASCII)


@dataclass(frozen=True)
class Tasks:
    """A set of task numbers that is never written out: an array may have millions."""

    ranges: tuple[range, ...]

    def __contains__(self, task: int) -> bool:
        return any(task in numbers for numbers in self.ranges)


def parse_tasks(text: str) -> Tasks | None:
    """`0-15:4%2`, `1,3,[5-7]`: the tasks without the limit of how many run at once. None: not understood."""
    if len(text) > MAX_CHARS:
        return None
    ranges = []
    for item in _LIMIT.sub("", text).split(","):
        found = _ITEM.fullmatch(item)
        if found is None:
            return None
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first or step < 1:
            return None
        ranges.append(range(first, last + 1, step))
    return Tasks(tuple(ranges))
