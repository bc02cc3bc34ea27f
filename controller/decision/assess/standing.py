"""Where stuck ranks stand, by their stacks (`stack.stuck`): who waits for others, and who is elsewhere. Pure.

A stack inside a collective, a backward pass or another wait of the library is a victim's. One that loads data, uses
files, sleeps in the kernel or runs the program's own code singles its rank out, if all others that were looked at wait.
A process that has a GPU open may wait for it under any line of its program (`loss.item()`), and so for the others: its
own code counts only where the kernel says that it waits for something else. All of it is the job's own word.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from controller.decision.assess.view import SAME_EVENT_S, View, before
from controller.decision.evidence import Evidence

CODE = "stack.stuck"
WAITS, LOADS, FILES, STORAGE, DRIVER, KERNEL, PROGRAM = (
    "waits for the other ranks",
    "loads data",
    "uses files",
    "waits for a remote file system in the kernel",
    "is in a call of its GPU's driver",
    "sleeps in the kernel and cannot be interrupted",
    "runs the program's own code",
)
# What a storage that does not answer is no reason for.
ELSEWHERE = (DRIVER, KERNEL, PROGRAM)
MOST_NAMED = 2
# What the library says of a wait, when it gives up or is looked into.
LIBRARY = ("nccl.watchdog_timeout", "nccl.watchdog_status", "gloo.timeout", "nccl.watchdog_ended", "collective.state")
# A library gives up long after a run is found to stand still.
GIVES_UP_S = 1800.0

# Paths, by any part of them. Checkpoints are files although they are written by the distributed package.
_FILE_PATHS = (
    *("torch/serialization", "torch/distributed/checkpoint", "/pathlib", "/shutil", "/tarfile", "/zipfile", "/gzip"),
    *("/h5py/", "/fsspec/", "/s3fs/", "/boto3/", "/botocore/", "/safetensors/", "/pyarrow/"),
)
_LOAD_PATHS = ("torch/utils/data", "/webdataset/", "/datasets/", "/torchdata/", "/streaming/base/", "/nvidia/dali")
_WAIT_PATHS = (
    *("torch/distributed", "torch/nn/parallel", "torch/autograd", "torch/cuda", "deepspeed/comm", "p2p_communication"),
    *("/horovod/", "/mpi4py/"),
)
_WAIT_NAMES = frozenset(
    {"all_reduce", "allreduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "reduce_scatter"}
    | {"reduce_scatter_tensor", "broadcast", "broadcast_object_list", "barrier", "monitored_barrier", "all_to_all"}
    | {"all_to_all_single", "batch_isend_irecv", "synchronize", "backward"}
)
_LOAD_NAMES = frozenset({"__getitem__", "__getitems__", "collate_fn", "_next_data", "_try_get_data", "next_batch"})
# Kernel functions in which a process sleeps, by their beginnings.
_STORAGE_WAITS = (
    *("nfs", "rpc_wait", "rpc_", "ptlrpc_", "ldlm_", "cl_sync_io", "cl_lock", "osc_", "mdc_", "ll_", "obd_", "ceph_"),
    *("cxi", "gpfs", "fhgfs", "Fhgfs", "beegfs", "cifs_", "smb2_", "fuse_", "request_wait_answer"),
)
_DRIVER_WAITS = ("nv", "_nv", "uvm_", "rm_", "os_acquire", "amdgpu_", "kfd_")
_OTHER_WAITS = (
    *("hrtimer_nanosleep", "do_nanosleep", "pipe_", "anon_pipe", "do_wait", "sk_wait", "tcp_", "inet_", "unix_stream"),
    *("wait_for_packet", "__skb_wait", "n_tty_"),
)


@dataclass(frozen=True)
class Standing:
    """`place`: one of the words above, "" where nobody can tell."""

    item: Evidence
    rank: int
    place: str


def standings(view: View) -> tuple[Standing, ...]:
    """The newest stack of each rank, as far as it belongs to the stall of this moment: an attempt may have stood still
    before, and gone on. In order of the ranks."""
    stalls, waits = view.of("progress.stalled"), view.of(*LIBRARY)
    if view.case.now is not None and not stalls and not waits:
        return ()
    newest: dict[int, Evidence] = {}
    for item in view.of(CODE):  # in the order of time
        if item.rank is not None:
            newest[item.rank] = item
    return tuple(
        Standing(item, rank, place(item))
        for rank, item in sorted(newest.items())
        if not before(item.at, _newest(stalls))
        and not before(item.at, _newest(waits), GIVES_UP_S)
        and not before(item.at, _newest(newest.values()), SAME_EVENT_S)
    )


def _newest(items: Iterable[Evidence]) -> float | None:
    return max((e.at for e in items if e.at is not None), default=None)


def elsewhere(view: View) -> tuple[tuple[Standing, ...], tuple[Standing, ...]]:
    """-> (those that stand elsewhere, those that wait for them); both empty unless it is a few of whom it is known,
    and all the others that were looked at wait."""
    found = standings(view)
    waiting = tuple(s for s in found if s.place == WAITS)
    odd = tuple(s for s in found if s.place not in (WAITS, ""))
    clear = len(odd) + len(waiting) == len(found) and 0 < len(odd) <= min(MOST_NAMED, len(waiting))
    return (odd, waiting) if clear else ((), ())


def place(item: Evidence) -> str:
    """By the innermost frame that tells; what the main thread waits in comes before what another thread does."""
    frames = _frames(item)
    by_frame = next((found for frame in frames if (found := _of_frame(*frame))), "")
    kernel = _in_kernel(item)
    if by_frame == WAITS:
        return by_frame
    if kernel == STORAGE or not frames:
        return kernel
    return by_frame or kernel or (PROGRAM if _own_code(item) else "")


def _of_frame(function: str, file: str) -> str:
    name = function.rsplit(".", 1)[-1]
    if any(part in file for part in _FILE_PATHS):
        return FILES
    if any(part in file for part in _LOAD_PATHS) or name in _LOAD_NAMES:
        return LOADS
    return WAITS if any(part in file for part in _WAIT_PATHS) or name in _WAIT_NAMES else ""


def _in_kernel(item: Evidence) -> str:
    """Uninterruptible sleep only: any process sleeps somewhere."""
    if item.attrs.get("state") != "D":
        return ""
    places = [str(item.attrs.get("wchan", "")), *str(item.attrs.get("kernel_stack", "")).split(" < ")]
    if any(name.startswith(_STORAGE_WAITS) for name in places):
        return STORAGE
    return DRIVER if any(name.startswith(_DRIVER_WAITS) for name in places) else KERNEL


def _own_code(item: Evidence) -> bool:
    return item.attrs.get("gpu") is False or str(item.attrs.get("wchan", "")).startswith(_OTHER_WAITS)


def _frames(item: Evidence) -> list[tuple[str, str]]:
    """Function and file, innermost first."""
    lines = str(item.attrs.get("frames", "")).splitlines()
    return [(function, file) for function, _, file in (line.partition("\t") for line in lines) if function]
