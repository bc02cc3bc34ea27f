"""Models and optimizers of every usual kind: stopped and resumed, they are what they would have been without."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.worker_hooks.conftest import HERE, World
from worker_hooks import Run
from worker_hooks.protocol.generations import accepted_folders, read_rank_file
from worker_hooks.training.files.digests import tensors_digest

pytestmark = pytest.mark.torch

KINDS = HERE / "programs" / "kinds.py"


def stored_keys(folder: Path) -> set[str]:
    indexes = [json.loads(path.read_text()) for path in folder.glob("rank-*.d/index.json")]
    return {key for index in indexes for key in index["tensors"]}


def finish(world: World, name: str, ranks: int, **options: Any) -> list[dict[str, Any]]:
    """Run to the end; what each rank wrote."""
    given = {"root": str(world.folder / name), "out": str(world.folder / f"{name}.out"), **options}
    started = world.start(KINDS, [json.dumps(given)], ranks)
    assert started.wait(120) == [-9 if "die" in options else 0] * ranks, started.text()
    if "die" in options:
        return finish(world, name, ranks, **{key: value for key, value in options.items() if key != "die"})
    return [json.loads((world.folder / f"{name}.out.{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        ("fsdp_mixed", 2),
        ("hybrid", 4),
        ("tensor_parallel", 2),
        ("two_dimensional", 4),
        ("replicated_beside_sharded", 2),
        ("compiled", 2),
    ],
)
def test_parallel_models_resume_on_the_same_mesh_to_the_bit(world: World, kind: str, ranks: int) -> None:
    whole = finish(world, "whole", ranks, kind=kind)
    again = finish(world, "again", ranks, kind=kind, die=5)
    for one, other in zip(whole, again, strict=True):
        assert "1" not in other["losses"] and "6" in other["losses"], "it did not resume"
        assert one["losses"] | other["losses"] == one["losses"]
        assert {**one, "losses": None} == {**other, "losses": None}
    (run,) = (world.folder / "again").glob("tj-*")
    folder = run / next(iter(accepted_folders(run)))
    shared = {key.removeprefix("model/") for key in stored_keys(folder) if key.startswith("model/")}
    own = {key.partition(":model/")[2] for key in stored_keys(folder) if ":model/" in key}
    assert sorted(shared | own) == whole[0]["keys"] and not any("_orig_mod" in key for key in shared | own)
    meshes = read_rank_file(folder, 0).run["layout"]["meshes"]
    assert meshes == MESHES.get(kind, [])


MESHES: dict[str, Any] = {
    "fsdp_mixed": [{"device": "cpu", "shape": [2], "names": None}],
    "hybrid": [{"device": "cpu", "shape": [2, 2], "names": ["replicate", "shard"]}],
    "tensor_parallel": [{"device": "cpu", "shape": [2], "names": ["tp"]}],
    "two_dimensional": [
        {"device": "cpu", "shape": [2, 2], "names": ["dp", "tp"]},
        {"device": "cpu", "shape": [2], "names": ["dp"]},
    ],
    "replicated_beside_sharded": [{"device": "cpu", "shape": [2], "names": None}],
}


# --- one process ------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.table(x.long().abs() % 7).mean(1))
        return logits


class Odd(nn.Module):
    """Complex, conjugated, 0-dimensional, empty, strided and tiny-float tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.empty(0, 4))
        self.register_buffer("mirror", torch.randn(4, dtype=torch.complex64).conj())
        self.register_buffer("strided", torch.randn(3, 5).t())
        self.register_buffer("small", torch.randn(9).to(torch.float8_e4m3fn))
        self.register_buffer("steps", torch.tensor(0, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return ((x * self.turn) @ self.mirror).abs() * self.scale + self.nothing.sum()


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    other = {"params": others, "lr": torch.tensor(0.02), "betas": (0.8, 0.9)}
    groups = [{"params": weights, "weight_decay": 0.1}, other]
    return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0)


def adamw(**options: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, **options)


def layers(kind: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)).to(kind)


ONE_PROCESS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], torch.optim.Optimizer]]] = {
    "compiled": (lambda: torch.compile(layers(), backend="eager"), adamw()),
    "tied": (Tied, adamw()),
    "bfloat16": (lambda: layers(torch.bfloat16), adamw()),
    "float16": (lambda: layers(torch.float16), lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9)),
    "groups": (layers, two_groups),
    "odd tensors": (Odd, adamw(foreach=False)),
    "foreach": (layers, adamw(foreach=True, amsgrad=True)),
    "fused": (layers, adamw(fused=True)),
    "lbfgs": (layers, lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)),
    "adafactor": (layers, lambda model: torch.optim.Adafactor(model.parameters(), lr=0.01)),
    "sparse gradients": (
        lambda: nn.Sequential(nn.EmbeddingBag(7, 4, sparse=True)),
        lambda model: torch.optim.SparseAdam(model.parameters(), lr=0.01),
    ),
}


def updates(root: Path, kind: str, until: int) -> tuple[dict[str, Any], Path]:
    """Train to step `until`, from wherever the checkpoints in `root` are; digests of the end."""
    make, optimize = ONE_PROCESS[kind]
    torch.manual_seed(5)
    model = make()
    optimizer = optimize(model)
    with Run(model=model, optimizer=optimizer, root=root, run_id="tj-4f2a9c0b11de", checkpoint_every=2) as run:
        while run.completed < until:
            optimizer.step(lambda: backward(model, optimizer, run.completed))
            run.step()
    state = {
        f"{index}.{key}": value
        for index, parameter in enumerate(model.parameters())
        for key, value in optimizer.state[parameter].items()
    }
    plain = {key: value for key, value in state.items() if not isinstance(value, torch.Tensor)}
    tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
    return {
        "model": tensors_digest({k: v.resolve_conj() for k, v in model.state_dict().items()}),
        "optimizer": tensors_digest(tensors),
        "plain": str(sorted(plain.items())),
        "groups": str([{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]),
    }, run.folder


def backward(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> torch.Tensor:
    optimizer.zero_grad()
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
    first = next(model.parameters())
    x = (x.abs() * 3).long() if isinstance(next(model.children(), None), nn.EmbeddingBag) else x
    loss = model(x.to(first.dtype) if first.dtype in (torch.bfloat16, torch.float16) else x).float().square().mean()
    loss.backward()
    return loss


@pytest.mark.parametrize("kind", ONE_PROCESS)
def test_every_kind_of_model_and_optimizer_resumes_to_the_bit(tmp_path: Path, kind: str) -> None:
    whole, _ = updates(tmp_path / "whole", kind, 5)
    updates(tmp_path / "again", kind, 2)
    again, folder = updates(tmp_path / "again", kind, 5)
    assert again == whole
    assert not [key for key in stored_keys(folder / next(iter(accepted_folders(folder)))) if "_orig_mod" in key]
    generations = {path.name.rpartition(".g")[2] for path in folder.glob("step-*")}
    assert generations == {"1", "2"}, "it did not resume"
