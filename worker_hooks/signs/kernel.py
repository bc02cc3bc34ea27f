"""The recognisers of kernel logs."""

from worker_hooks.signs.recogniser import Recogniser
from worker_hooks.signs.xid import SxidReader, XidReader


def kernel_recognisers() -> list[Recogniser]:
    """Fresh ones: they remember what they have read."""
    return [XidReader(), SxidReader()]


def kernel_in_job_recognisers() -> list[Recogniser]:
    """Of those, what people paste or forward into a job's log."""
    return [XidReader(), SxidReader()]
