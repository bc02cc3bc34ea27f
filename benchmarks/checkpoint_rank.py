"""One rank of benchmarks/checkpoint.py: every method and every limit, round after round.

checkpoint_rank.py FOLDER BYTES ROUNDS
"""

import gc
import json
import logging
import mmap
import os
import random
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from worker_hooks import Run
from worker_hooks.training.saving.read_back import ReadingBack

LAYERS = 128
PIECE = 8 << 20
SHARED = StagingOptions(False, True, False, False)
PLAIN = StagingOptions(False, False, False, False)


class Net(nn.Module):
    """Parameters only: what is measured is moving them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ParameterList([torch.randn(count) for _ in range(LAYERS)])

    def forward(self) -> torch.Tensor:
        return sum((layer[0] for layer in self.layers), torch.zeros(()))


class Rank:
    def __init__(self, folder: Path, size: int) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.folder = folder
        torch.manual_seed(0)
        self.net = Net(size // (3 * LAYERS * 4))
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        for parameter in self.net.parameters():
            # Adam's state as its first step would make it, without the memory of gradients.
            moments = {name: torch.rand_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self.optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
        model = nn.parallel.DistributedDataParallel(self.net) if self.world > 1 else self.net
        self.state: dict[str, Any] = {
            "model": dict(self.net.named_parameters()),
            "optimizer": {str(i): state for i, state in enumerate(self.optimizer.state.values())},
        }
        self.flat = [parameter.detach() for parameter in self.net.parameters()]
        self.flat += [tensor for state in self.optimizer.state.values() for tensor in state.values()]
        self.copy = [torch.zeros_like(tensor) for tensor in self.flat]
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in self.flat) & ~4095
        self.raw = mmap.mmap(-1, self.bytes)
        torch.frombuffer(self.raw, dtype=torch.float32).normal_()
        self.group = dist.new_group(backend="gloo")
        self.stagers: dict[Any, DefaultStager] = {}
        self.work = torch.randn(384, 384)
        for _ in range(100):
            self.step()
        self.run = Run(model=model, optimizer=self.optimizer, root=folder / "ours", checkpoint_every=0, keep=1)
        self.run.restore()
        self.run.step()
        self.saver = self.run._attempt._saver
        self.saver.prepare(self.run._tracked)
        self.saver._background.wait()

    # --- the training it costs ----------------------------------------------------------------------------------------

    def step(self) -> float:
        begun = time.perf_counter()
        for _ in range(4):
            torch.mm(self.work, self.work)
        return time.perf_counter() - begun

    def change(self) -> None:
        with torch.no_grad():
            for tensor in self.flat:
                tensor.add_(1e-3)

    def settle(self) -> None:
        gc.collect()
        if self.rank == 0:
            os.sync()
        dist.barrier()
        time.sleep(0.5)
        dist.barrier()

    def ready(self) -> float:
        """Every method and every limit begins in the midst of training: all has changed and steps have just run. What
        one of them takes when nothing else does."""
        self.change()
        self.settle()
        idle = statistics.median([self.step() for _ in range(100)])
        dist.barrier()
        return idle

    def timed(self, save: Callable[[], Callable[[], float | None]]) -> dict[str, float]:
        """`save` begins a save and gives the question whether it is durable: the time, or None."""
        idle = self.ready()
        begun = time.perf_counter()
        durable = save()
        blocked = time.perf_counter() - begun
        extra = 0.0
        while (at := durable()) is None:
            extra += self.step() - idle
        dist.barrier()
        return {"blocked": blocked, "cost": blocked + max(0.0, extra), "durable": at - begun}

    # --- methods ------------------------------------------------------------------------------------------------------

    def ours(self) -> dict[str, float]:
        """A save that `run.step` takes, durable where rank 0 has renamed the manifest into place."""
        attempt, committer = self.run._attempt, self.saver._committer
        folder = self.run.folder / f"step-{attempt.completed + 1:08d}.g{self.run.generation}" / "manifest.json"
        attempt._occasions._every = 1

        def save() -> Callable[[], float | None]:
            self.run.step()
            return lambda: time.perf_counter() if folder.exists() else None

        figures = self.timed(save)
        attempt._occasions._every = 0
        assert not committer.failed, committer.failed
        # The reading back is idle work of its own, and would slow the methods that come next.
        self.saver._read_back = ReadingBack(self.saver.identity)
        self.saver._background.wait()  # the folder before it is removed
        return figures

    def dcp(self, kind: AsyncCheckpointerType, kept: bool) -> dict[str, float]:
        path = self.folder / "dcp"
        more: dict[str, Any] = {}
        if kept:
            config = SHARED if kind == AsyncCheckpointerType.PROCESS else PLAIN
            more["async_stager"] = self.stagers.setdefault(kind, DefaultStager(config))
        done: list[float] = []

        def save() -> Callable[[], float | None]:
            future: Any = dcp.async_save(
                self.state, checkpoint_id=path, process_group=self.group, async_checkpointer_type=kind, **more
            )
            upload = getattr(future, "upload_completion", future)
            upload.add_done_callback(lambda _: done.append(time.perf_counter()))
            return lambda: done[0] if done else None

        figures = self.timed(save)
        dist.barrier()
        if self.rank == 0:
            shutil.rmtree(path)
        return figures

    # --- limits -------------------------------------------------------------------------------------------------------

    def limit(self, act: Callable[[], None], *, alone: bool = False) -> dict[str, float]:
        self.ready()
        begun = time.perf_counter()
        if self.rank == 0 or not alone:
            act()
        seconds = time.perf_counter() - begun
        dist.barrier()
        return {"seconds": seconds}

    def memcpy(self) -> None:
        with torch.no_grad():
            for target, source in zip(self.copy, self.flat, strict=True):
                target.copy_(source)

    def write(self, flags: int) -> None:
        path = self.folder / "raw"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
        view = memoryview(self.raw)
        for begin in range(0, self.bytes, PIECE):
            piece = view[begin : begin + PIECE]
            assert os.write(descriptor, piece) == len(piece)
        os.fsync(descriptor)
        os.close(descriptor)
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def unlink(self) -> None:
        if self.rank == 0:
            (self.folder / "raw").unlink()

    def round(self, number: int) -> dict[str, dict[str, float]]:
        thread, process = AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS
        methods: dict[str, Callable[[], dict[str, float]]] = {
            "ours": self.ours,
            "dcp_thread": lambda: self.dcp(thread, False),
            "dcp_thread_kept_stager": lambda: self.dcp(thread, True),
            "dcp_process": lambda: self.dcp(process, False),
            "dcp_process_kept_stager": lambda: self.dcp(process, True),
            "memcpy": lambda: self.limit(self.memcpy),
            "odirect": lambda: self.limit(lambda: self.write(os.O_DIRECT), alone=True),
            "buffered": lambda: self.limit(lambda: self.write(0), alone=True),
        }
        names = list(methods)
        found = {}
        # The same order on every rank, and another in each round: no method always comes after the same other one.
        for name in random.Random(number).sample(names, len(names)):
            found[name] = methods[name]()
            if name in ("odirect", "buffered"):
                self.unlink()
        return {name: found[name] for name in names}


def main() -> None:
    folder, size, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    rank = Rank(folder, size)
    found = [rank.round(number) for number in range(rounds + 1)][1:]
    (folder / f"result-{rank.rank}.json").write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # the process-based saver's child does not end by itself


if __name__ == "__main__":
    main()
