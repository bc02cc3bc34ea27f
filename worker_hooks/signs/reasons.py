"""Why something failed, in the words of whoever failed: an exception's text, a watchdog's reason, a library's warning.

The same text comes in many places (NCCL's own line, torch's exception, the watchdog's last words), so it is read by
one function, and each place says with it what it is: a cause, or a repetition.
"""

from worker_hooks.signs.cuda import cuda_reason
from worker_hooks.signs.found import Found, sign
from worker_hooks.signs.gloo import gloo_reason
from worker_hooks.signs.losses import loss_reason
from worker_hooks.signs.mismatch import mismatch_found
from worker_hooks.signs.nccl import nccl_reason
from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.sign import Sign
from worker_hooks.signs.storage import storage_reason
from worker_hooks.signs.stores import store_reason
from worker_hooks.signs.watchdog import watchdog_found

# Their rank counts within a process group; the rank in front of the line counts in the job.
_BY_GROUP = ("nccl.watchdog_", "gloo.", "store.")


def reasons(text: str) -> list[Found]:
    """What `text` tells, the most specific first; [] where it is nobody's known words."""
    if mismatch := mismatch_found(text):
        return mismatch
    watchdog = watchdog_found(text)
    if watchdog is not None:
        inner = _inner(watchdog) if watchdog.code == "nccl.watchdog_ended" else []
        return [*inner, watchdog]
    if nccl := nccl_reason(text):
        return nccl
    found = cuda_reason(text) or loss_reason(text) or gloo_reason(text) or store_reason(text) or storage_reason(text)
    return [found] if found else []


def _inner(ended: Found) -> list[Found]:
    """The reason for which a watchdog ended is a failure of its own, of the same rank."""
    text = str(ended.attrs.get("text", ""))
    return [Found(one.code, one.attrs, ended.rank if one.rank is None else one.rank, one.node) for one in reasons(text)]


class Reasons:
    """Signs of the communication libraries, CUDA, storage and memory, wherever in the log they stand."""

    triggers: tuple[bytes, ...] = (
        *(b"NCCL WARN", b"NCCL w", b"WorkNCCL", b"GroupNCCL", b"rror", b"xception", b"Connection", b"Cuda failure"),
        *(b"Assertion ", b"NVML", b"Got completion"),  # the last: torch prints NCCL's last error without its prefix
        *(b"bad_alloc", b"missing ranks", b"oss is nan", b"ncclInvalid"),
    )

    def read(self, line: Line) -> list[Sign]:
        return [
            sign(line, found, prefer_own_rank=found.code.startswith(_BY_GROUP) and line.rank is not None)
            for found in reasons(line.text)
        ]

    def close(self) -> list[Sign]:
        return []
