"""`tiny.py` with a line for every update in `<trace>.<rank>.jsonl`: what the ranks held, and what they were fed.

argv[1] is JSON: the options of `tiny.py`, `trace`, and `strike`: {"rank" (null: each), "step", "moment"}, where that
rank kills itself. Moments: `mid` (gradients of that update are half accumulated), `after` (the update is done, its save
is not), `saved` (the next batch is there: what was due is staged or written), and `loading` (a resume has opened the
first of the tensors, whatever the step).
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from tiny import DEFAULTS, Job, plain, tracked

from worker_hooks.training.files.digests import tensors_digest, value_digest


class Numbered(torch.utils.data.Dataset[Any]):
    """Each sample with its id."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return int(index), *self.data[index]


class Traced(Job):
    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._trace = os.open(f"{options['trace']}.{self.rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._ids: list[list[int]] = []
        self._inputs: list[str] = []
        watch_loading(options["strike"], self.rank)

    def _data(self) -> Any:
        return Numbered(super()._data())

    def update(self, batch: Any) -> torch.Tensor | None:
        ids, x, y = batch
        self._strike("saved")
        self._ids.append(ids.tolist())
        self._inputs.append(tensors_digest({"x": x, "y": y}))
        loss = super().update((x, y))
        if loss is None:
            self._strike("mid", ahead=1)
        return loss

    def updated(self, step: int, loss: torch.Tensor) -> None:
        line = {"step": step, "loss": loss.item().hex(), "ids": self._ids, "inputs": self._inputs, **self._state()}
        os.write(self._trace, json.dumps(line).encode() + b"\n")
        self._ids, self._inputs = [], []
        self._strike("after")

    def _state(self) -> dict[str, Any]:
        torch_state = torch.get_rng_state()
        return {
            "parameters": tensors_digest(dict(self.model.named_parameters())),
            "buffers": tensors_digest(dict(self.model.named_buffers())),
            "optimizer": tensors_digest(dict(self._moments())),
            "average": tensors_digest({str(i): v for i, v in enumerate(self.average.values)}) if self.average else None,
            "scheduler": self.scheduler.last_epoch,
            "lr": [group["lr"].hex() for group in self.optimizer.param_groups],
            "random": {
                "torch": tensors_digest({"state": torch_state}),
                "numpy": value_digest([str(part) for part in numpy.random.get_state()[1]], "sha256"),
                "python": value_digest(list(random.getstate()[1]), "sha256"),
            },
        }

    def _moments(self) -> Iterator[tuple[str, torch.Tensor]]:
        for index, entry in self.optimizer.state_dict()["state"].items():
            for name, value in entry.items():
                yield f"{index}.{name}", value

    def _strike(self, moment: str, *, ahead: int = 0) -> None:
        strike, done = self.options["strike"], self.scheduler.last_epoch
        if strike and strike["moment"] == moment and strike["step"] == done + ahead:
            die(strike, self.rank)


def watch_loading(strike: dict[str, Any] | None, rank: int) -> None:
    """The end comes while tensors are being read, whoever reads them."""
    if not strike or strike["moment"] != "loading":
        return

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith("tensors.bin") and not arguments[2] & os.O_ACCMODE:
            die(strike, rank)

    sys.addaudithook(heard)


def die(strike: dict[str, Any], rank: int) -> None:
    """With its loader workers, as an agent or a lost node ends them: left alone they hold the rank's sockets open for
    5 s more, and the other ranks wait for a peer that is gone. torch's own handler would turn a worker's end into an
    exception on the way."""
    if strike["rank"] in (rank, None):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for process in multiprocessing.active_children():
            process.kill()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    chosen = DEFAULTS | {"trace": None, "strike": None} | json.loads(sys.argv[1])
    (plain if chosen["plain"] else tracked)(chosen, Traced)
