"""Two gloo ranks in lockstep; rank 1 stops in Python at step 5, as argv[1] says: `sleep`, `lock` or `gil`.

`gil` holds the interpreter's lock in one C call, so that no other thread of the process runs either.
"""

import ctypes
import sys
import threading
import time

import torch
import torch.distributed as dist

from worker_hooks import Run

BLOCKED_AT = 5
MINUTES_S = 120


def block(how: str) -> None:
    if how == "sleep":
        time.sleep(MINUTES_S)
    elif how == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire(timeout=MINUTES_S)
    else:
        ctypes.PyDLL(None).sleep(MINUTES_S)


def main(run: Run) -> None:
    for step in range(1, 1000):
        total = torch.ones(1)
        dist.all_reduce(total)
        if dist.get_rank() == 1 and step == BLOCKED_AT:
            block(sys.argv[1])
        run.step(loss=float(total))
        time.sleep(0.02)


Run.launch(main)
