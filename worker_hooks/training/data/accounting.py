"""Does the place in the data fit the updates that were done? R04: one that counts from the last restart does not."""

from dataclasses import dataclass

Accounted = tuple[str, str, int, int] | tuple[str, str, int, int, str, str]


@dataclass(frozen=True)
class Place:
    """Of the whole job. `whole`: batches in an epoch; `together`: samples in a batch of all ranks; `early`: samples of
    earlier epochs that were never asked for, beyond the remainder that no epoch trains."""

    epoch: int
    batches: int
    whole: int
    together: int
    early: int

    @property
    def trained(self) -> int:
        """Batches since the first step of the first attempt."""
        return self.epoch * self.whole + self.batches - max(0, -(-self.early // self.together))


def check(place: Place, step: int, accumulation: int) -> Accounted:
    """(name, outcome, samples that the updates took, samples up to this place), and code and why where they differ.

    The end of an epoch may cut an accumulation short or leave it out: one update in each epoch is no difference.
    """
    ends = place.epoch + (place.batches >= place.whole)
    tolerance = ends if accumulation > 1 else 0
    expected, actual = step * accumulation * place.together, place.trained * place.together
    if abs(place.trained // accumulation - step) <= tolerance:
        return "consumed", "PASS", expected, actual
    batch = accumulation * place.together
    why = f"step {step} x global batch {batch} = {expected} samples, the position says {actual}"
    return "consumed", "DEGRADED", expected, actual, "CONSUMED_OFF", why
