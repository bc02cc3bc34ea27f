"""The recognisers of kernel logs."""

from worker_hooks.signs.kernel_hardware import hardware_reader
from worker_hooks.signs.kernel_host import disk_reader, storage_reader, stuck_reader
from worker_hooks.signs.kernel_network import network_reader
from worker_hooks.signs.oom import OomInJobReader, OomReader
from worker_hooks.signs.recogniser import Recogniser
from worker_hooks.signs.xid import SxidReader, XidInJobReader, XidReader


def kernel_recognisers() -> list[Recogniser]:
    """Fresh ones: they remember what they have read."""
    readers = (hardware_reader(), network_reader(), stuck_reader(), disk_reader(), storage_reader())
    return [XidReader(), SxidReader(), OomReader(), *readers]


def kernel_in_job_recognisers() -> list[Recogniser]:
    """Of those, what is forwarded or pasted into a job's log."""
    return [XidInJobReader(), SxidReader(), OomInJobReader()]
