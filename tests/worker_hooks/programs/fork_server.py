"""Starts ranks by forking: torch is imported once per test session, not once per rank (2 s each on 2 cores).

Reads one JSON request per line on stdin: `{"script", "argv", "envs": [one environment per rank], "logs": [...],
"imports": [modules to import first, here]}` starts ranks and answers `{"pids": [...]}`; `{"wait": [pids], "timeout":
s}` answers `{"statuses": [...]}` (negative: signal, null: still running at the timeout). The server imports and forks;
it never runs a tensor operation, which would hang its children.
"""

import faulthandler
import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.nn.parallel

import worker_hooks.training.run  # noqa: F401


def start(request: dict) -> list[int]:
    for name in request["imports"]:
        importlib.import_module(name)
    pids = []
    for environment, log in zip(request["envs"], request["logs"], strict=True):
        pid = os.fork()
        if pid == 0:
            become(request["script"], request["argv"], environment, log)
        pids.append(pid)
    return pids


def keep_groups() -> None:
    """A gloo group that ends with its last reference joins its thread while this one holds the GIL, and that thread may
    want it: ranks that had written everything hung for ever as their model was freed (torch 2.13, rarely).
    So no group is freed before the rank exits."""
    kept: list[Any] = []
    destroy = dist.destroy_process_group

    def destroyed(group: Any = None) -> None:
        kept.extend(dist.distributed_c10d._world.pg_map)
        destroy(group)

    dist.destroy_process_group = destroyed


def become(script: str, argv: list[str], environment: dict[str, str], log: str) -> None:
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        faulthandler.register(signal.SIGUSR2)  # a hanging rank is asked where it is before it is killed
        os.environ.update(environment)
        sys.argv = [script, *argv]
        sys.path.insert(0, str(Path(script).parent))
        keep_groups()
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait(pids: list[int], timeout: float) -> list[int | None]:
    deadline = time.monotonic() + timeout
    statuses: dict[int, int] = {}
    while len(statuses) < len(pids) and time.monotonic() < deadline:
        for pid in pids:
            if pid not in statuses:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    statuses[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return [statuses.get(pid) for pid in pids]


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(json.dumps({"statuses": wait(request["wait"], request["timeout"])}), flush=True)
        else:
            print(json.dumps({"pids": start(request)}), flush=True)


if __name__ == "__main__":
    main()
