"""Ranks that save two steps, or that load them again and again, each time with another thing wrong.

argv[1] is JSON: `{"do": "save" | "load", "kind": "ddp" | "fsdp", "seed", "every", "root", "out"}`. `save` writes the
digests of the whole state by step to `<out>.json`; `load` expects them there and asserts everything by itself: it does
every `every`-th damage, beginning with number `seed`.
"""

import errno
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from worker_hooks import Run
from worker_hooks.protocol import generations
from worker_hooks.training.comms import Coordinator, process_group
from worker_hooks.training.errors import CheckpointError, CheckpointMismatch, RestartedFromScratch
from worker_hooks.training.files.digests import tensors_digest
from worker_hooks.training.resuming.candidates import Source
from worker_hooks.training.resuming.resume import Loading
from worker_hooks.training.state.tracked import Tracked
from worker_hooks.training.tiers.nodes import Nodes
from worker_hooks.training.tiers.sources import Ground

RUN_ID = "tj-4f2a9c0b11de"
OLDER, NEWER = "step-00000001.g1", "step-00000002.g1"


class Average:
    """No part of any model: each rank stores its own. Odd sizes leave padding."""

    def __init__(self) -> None:
        self.values = {"a": torch.full((3,), float(_rank() + 1)), "b": torch.arange(300.0) + _rank()}

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = dict(state)


def build(kind: str) -> dict[str, Any]:
    torch.manual_seed(4)
    net: nn.Module = nn.Sequential(nn.Linear(7, 12), nn.LayerNorm(12), nn.Linear(12, 7))
    if kind == "fsdp" and dist.is_initialized():
        fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    elif dist.is_initialized():
        net = nn.parallel.DistributedDataParallel(net)
    objects = {"model": net, "optimizer": torch.optim.AdamW(net.parameters(), lr=0.1)}
    return objects if kind == "fsdp" else {**objects, "ema": Average()}


def update(objects: dict[str, Any], step: int) -> None:
    objects["model"](torch.randn(4, 7)).square().sum().backward()
    objects["optimizer"].step()
    objects["optimizer"].zero_grad()
    for value in objects["ema"].values.values() if "ema" in objects else ():
        value.add_(step)


def tensors(objects: dict[str, Any]) -> dict[str, torch.Tensor]:
    found = {f"model/{key.removeprefix('module.')}": value for key, value in objects["model"].state_dict().items()}
    for number, state in objects["optimizer"].state_dict()["state"].items():
        found |= {f"optimizer/{number}/{key}": value for key, value in state.items()}
    if "ema" in objects:
        found |= {f"ema/{key}": value for key, value in objects["ema"].values.items()}
    return found


def digest(objects: dict[str, Any]) -> str:
    """Of the whole state, whatever part of it this rank holds. Collective."""
    whole = {
        key: value.full_tensor() if hasattr(value, "full_tensor") else value for key, value in tensors(objects).items()
    }
    return tensors_digest(whole)


def spoil(objects: dict[str, Any]) -> None:
    """So that a load that leaves a tensor out shows."""
    with torch.no_grad():
        for value in tensors(objects).values():
            (value.to_local() if hasattr(value, "to_local") else value).fill_(7)


# --- the ways a checkpoint goes bad -----------------------------------------------------------------------------------


def flip(path: Path, offset: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def damages(folder: Path, seed: int) -> Iterator[tuple[str, str, Callable[[Path], Any]]]:
    """(what, file, how) for each file that the checkpoint consists of; `how` gets the folder."""
    chance = random.Random(seed)
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and "verified" not in path.name):
        name, size = str(path.relative_to(folder)), path.stat().st_size
        # In a manifest without a seal a bit may go unseen, and mean nothing.
        if name != "manifest.json" or b'"seal"' in path.read_bytes():
            for offset in {0, size - 1, chance.randrange(size), *padding(folder, name)}:
                yield f"bit at {offset} of {size}", name, _flip(name, offset, chance.randrange(8))
        yield "cut", name, _cut(name, chance.randrange(size))
        yield "longer", name, _longer(name)
        yield "gone", name, _gone(name)


def padding(folder: Path, name: str) -> list[int]:
    """A byte of each gap between the chunks of a file, that no tensor ever sees."""
    path = folder / name
    if path.name != "tensors.bin":
        return []
    chunks = json.loads((path.parent / "index.json").read_bytes())["chunks"]
    used = {at for chunk in chunks for at in range(chunk["start"], chunk["start"] + chunk["bytes"])}
    return [at for at in range(path.stat().st_size) if at not in used and at - 1 in used]


def _flip(name: str, offset: int, bit: int) -> Callable[[Path], Any]:
    return lambda folder: flip(folder / name, offset, bit)


def _cut(name: str, size: int) -> Callable[[Path], Any]:
    return lambda folder: os.truncate(folder / name, size)


def _longer(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).open("ab").write(b"0")


def _gone(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


# --- loading ----------------------------------------------------------------------------------------------------------


class Stage:
    """A fresh copy of the run's folder for each case."""

    def __init__(self, options: dict[str, Any], expected: dict[str, Any]) -> None:
        self.options = options
        self.expected = expected
        self.coordinator = Coordinator()
        self.objects = build(options["kind"])
        for step in (1, 2) if options["seed"] % 2 else ():  # an optimizer that has its state, or a fresh one
            update(self.objects, step)
        self.tracked = Tracked()
        for name, item in self.objects.items():
            self.tracked.add(name, item)
        self.set_aside: list[tuple[str, str]] = []
        self.run = Path(options["root"]).parent / "case" / RUN_ID

    def copy(self, *damage: Callable[[Path], Any]) -> None:
        """`damage` is done to the run's folder."""
        if self.coordinator.rank == 0:
            shutil.rmtree(self.run, ignore_errors=True)
            shutil.copytree(Path(self.options["root"]) / RUN_ID, self.run)
            for do in damage:
                do(self.run)
        self.coordinator.gather(None)

    def load(self, **options: Any) -> Source | None:
        self.set_aside.clear()
        spoil(self.objects)
        ground = Ground(self.run, self.coordinator, Nodes(("here",) * self.coordinator.world_size))
        found = Loading(ground, self.tracked, self._aside, **options).newest()
        self.coordinator.gather(None)
        return found

    def _aside(self, folder: Path, reason: str) -> None:
        self.set_aside.append((folder.name, reason))
        generations.quarantine(folder, reason=reason, generation=1, now=0.0)

    def holds(self, step: int) -> bool:
        """Of a replica and of a whole sharded state; what each rank has of its own only on the ranks of the save."""
        told = self.expected["digests"][str(step)]
        mine = digest(self.objects)
        return mine == (told[self.coordinator.rank] if self.options["kind"] == "ddp" else told[0])


def check_sound(stage: Stage) -> None:
    stage.copy()
    found = stage.load()
    assert found is not None and found.folder.name == NEWER and stage.holds(2)


def check_damage(stage: Stage) -> int:
    """Each kind of it, in each file; how many there were."""
    source, cases = Path(stage.options["root"]) / RUN_ID / NEWER, 0
    seed, every = stage.options["seed"], stage.options["every"]
    for what, name, how in list(damages(source, seed))[seed % every :: every]:
        stage.copy(lambda run, how=how: how(run / NEWER))
        cases, case, found = cases + 1, f"{what}: {name}", stage.load(fresh_start=bool(cases % 2))
        assert found is not None and found.folder.name == OLDER and stage.holds(1), case
        said = stage.coordinator.rank == 0 and (name, what) != ("manifest.json", "gone")
        assert [folder for folder, _ in stage.set_aside] == [NEWER] * said, case
        assert all(name in reason for _, reason in stage.set_aside), f"{case}: {stage.set_aside}"
    return cases


def check_nothing_left(stage: Stage) -> None:
    """Every checkpoint bad: refused; with `fresh_start` the run begins with the values that it has."""

    def spoil_both(run: Path) -> None:
        for folder in (OLDER, NEWER):
            path = run / folder / "rank-00000.d/tensors.bin"
            flip(path, path.stat().st_size - 1, 3)

    stage.copy(spoil_both)
    try:
        stage.load()
    except RestartedFromScratch as error:
        assert len(error.bad) == 2 and "rank-00000.d/tensors.bin does not match its digest" in error.bad[0]
    else:
        raise AssertionError("a run without an intact checkpoint began again")
    stage.copy(spoil_both)
    spoil(stage.objects)
    before = digest(stage.objects)
    assert stage.load(fresh_start=True) is None
    assert digest(stage.objects) == before, "values of a damaged checkpoint are in a run that begins at step 0"


def check_one_ranks_trouble(stage: Stage) -> None:
    """An outage and another model on the last rank alone: the same error on all, and nothing is set aside."""
    last = stage.coordinator.rank == stage.coordinator.world_size - 1
    stage.copy()
    preadv = os.preadv
    if last:
        os.preadv = _fail  # type: ignore[assignment]
    try:
        stage.load()
    except CheckpointError as error:
        assert f"rank {stage.coordinator.world_size - 1}: [Errno 5]" in str(error) and "tensors.bin" in str(error)
    else:
        raise AssertionError("an outage was not said")
    finally:
        os.preadv = preadv
    stage.copy()
    if last:
        stage.tracked.add("more", nn.Linear(2, 2))
    try:
        stage.load()
    except CheckpointMismatch as error:
        assert "more/weight" in str(error)
    else:
        raise AssertionError("another model was loaded into")
    stage.tracked.models.pop("more", None)
    assert not stage.set_aside and not list(stage.run.glob("*/quarantine.json"))


def _fail(*_: Any) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def save(options: dict[str, Any]) -> None:
    digests: dict[int, list[str]] = {}
    objects, coordinator = build(options["kind"]), Coordinator()
    every = {"checkpoint_every": 1, "asynchronous": False, "strict": False}
    with Run(root=options["root"], run_id=RUN_ID, **every, **objects) as run:
        for step in (1, 2):
            update(objects, step)
            digests[step] = coordinator.gather(digest(objects))
            run.step(loss=0.0)
    if coordinator.rank == 0:
        Path(f"{options['out']}.json").write_text(json.dumps({"digests": digests}))


def main(options: dict[str, Any]) -> None:
    with process_group():
        if options["do"] == "save":
            save(options)
            return
        stage = Stage(options, json.loads(Path(f"{options['out']}.json").read_text()))
        check_sound(stage)
        cases = check_damage(stage)
        check_nothing_left(stage)
        check_one_ranks_trouble(stage)
        check_sound(stage)
        Path(f"{options['out']}.{_rank()}.cases").write_text(str(cases))
        del stage


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
