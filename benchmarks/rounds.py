"""What the benchmarks that take turns make of their rounds."""

import json
import random
import statistics
from pathlib import Path

Rounds = list[dict[str, dict[str, float]]]  # of each round: by method and figure


def slowest(scratch: Path, world: int) -> Rounds:
    """The figures that the ranks left in `result-<rank>.json`: the slowest rank's count."""
    found: list[Rounds] = [json.loads((scratch / f"result-{rank}.json").read_text()) for rank in range(world)]
    return [
        {method: {key: max(one[method][key] for one in several) for key in several[0][method]} for method in several[0]}
        for several in zip(*found, strict=True)
    ]


def interval(values: list[float]) -> list[float]:
    """95 % interval of the median (bootstrap, seeded)."""
    draw = random.Random(7)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return [round(medians[50], 3), round(medians[1949], 3)]
