"""What the state is made of, written and read back: plain values, random state and tensors. No pickle anywhere."""

import json
import math
import random
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worker_hooks.share_folder import load_shares
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.files import digests
from worker_hooks.training.saving import share_writer
from worker_hooks.training.saving.shares import my_share
from worker_hooks.training.state import codec, random_state
from worker_hooks.training.state.codec import decode, encode
from worker_hooks.training.state.tracked import Parts

pytestmark = pytest.mark.torch

PACKAGE = Path(codec.__file__).parents[1]


scalars = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers() | st.just("$"), inner)
    ),
    max_leaves=20,
)


@given(values)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    data = json.loads(json.dumps(encode(value, "value", {}), allow_nan=False))
    back = decode(data, {})
    assert back == value and repr(back) == repr(value)


def test_values_json_does_not_have() -> None:
    tensors: codec.Tensors = {}
    value = {
        "milestones": Counter({3: 2}),
        "ordered": OrderedDict(a=1),
        "nan": math.nan,
        "inf": -math.inf,
        "numpy": numpy.float64(0.1),
        "array": numpy.arange(3),
        "tensor": torch.arange(4),
    }
    back = decode(json.loads(json.dumps(encode(value, "v", tensors), allow_nan=False)), tensors)
    assert isinstance(back["milestones"], Counter) and back["milestones"] == {3: 2}
    assert math.isnan(back["nan"]) and back["inf"] == -math.inf
    assert back["numpy"] == 0.1 and back["array"].tolist() == [0, 1, 2]
    assert torch.equal(back["tensor"], torch.arange(4)) and "v.tensor" in tensors


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: None, Path("x"), [complex(1, 2)]])
def test_what_cannot_be_stored_is_refused_by_name(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"scheduler\.thing.*cannot be stored"):
        encode({"thing": value}, "scheduler", {})


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match="unknown kind"):
        decode({"$": "python/object"}, {})


def test_nothing_is_pickled() -> None:
    """The source says it too: no import, no torch.save or torch.load, no object collective."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "torch.load(", "torch.save(", "_object_list", "all_gather_object", "marshal"):
            assert word not in text, f"{path}: {word}"


# --- random state ---------------------------------------------------------------------------------------------------


def test_every_generator_comes_back_and_reading_draws_nothing() -> None:
    def draw() -> list[float]:
        return [
            random.random(),
            random.gauss(0, 1),
            float(numpy.random.rand()),
            numpy.random.randn(),
            *torch.rand(3).tolist(),
        ]

    random.gauss(0, 1)
    numpy.random.randn()
    state = json.loads(json.dumps(random_state.capture()))
    assert random_state.digests(state) == random_state.digests(random_state.capture())
    first = draw()
    assert random_state.digests(state) != random_state.digests(random_state.capture())
    random_state.restore(state)
    assert draw() == first


# --- tensors on disk --------------------------------------------------------------------------------------------------


def test_tensors_of_every_kind_come_back_to_the_bit(tmp_path: Path) -> None:
    kinds = (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.bool,
        torch.uint8,
        torch.complex64,
    )
    tensors = {str(kind): torch.randn(3, 5).to(kind) for kind in kinds}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "strided": torch.randn(4, 6).t()}
    tensors["nan"] = torch.tensor([float("nan"), -0.0])
    files = share_writer.save_share(tmp_path, 0, tensors, "crc32")
    assert {entry.name for entry in files} == {"rank-00000.d/tensors.bin", "rank-00000.d/index.json"}
    for entry in files:
        assert digests.file_digest(tmp_path / entry.name, "crc32") == entry.digest
        assert (tmp_path / entry.name).stat().st_size == entry.bytes
    loaded = {key: torch.zeros(value.shape, dtype=value.dtype) for key, value in tensors.items()}
    load_shares(tmp_path, 1, loaded)
    assert digests.tensors_digest(loaded) == digests.tensors_digest(tensors)


def test_shares_of_four_ranks_load_as_one(tmp_path: Path) -> None:
    parts = Parts(shared={f"w{i}": torch.randn(7 + i) for i in range(9)}, own={"mine": torch.tensor(0.0)})
    for rank in range(4):
        parts.own = {"mine": torch.tensor(float(rank))}
        share_writer.save_share(tmp_path, rank, my_share(parts, rank, 4), "crc32")
    targets = {key: torch.zeros_like(value) for key, value in parts.shared.items()}
    targets["rank-00002:mine"] = torch.zeros(())
    load_shares(tmp_path, 4, targets)
    assert all(torch.equal(targets[key], value) for key, value in parts.shared.items())
    assert targets["rank-00002:mine"] == 2.0


def test_every_shared_tensor_is_dealt_to_one_rank_and_the_bytes_are_even() -> None:
    parts = Parts(shared={f"w{i}": torch.zeros(100 + i) for i in range(40)}, from_rank_zero={"w7"})
    shares = [my_share(parts, rank, 4) for rank in range(4)]
    assert sorted(key for share in shares for key in share) == sorted(parts.shared)
    assert "w7" in shares[0]
    sizes = [sum(tensor.numel() for tensor in share.values()) for share in shares]
    assert max(sizes) - min(sizes) <= 140


def test_a_missing_tensor_is_an_error(tmp_path: Path) -> None:
    share_writer.save_share(tmp_path, 0, {"a": torch.zeros(2)}, "crc32")
    with pytest.raises(RuntimeError, match="Missing key"):
        load_shares(tmp_path, 1, {"b": torch.zeros(2)})
