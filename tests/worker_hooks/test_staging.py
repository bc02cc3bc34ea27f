"""Shares are dealt and staged as the very bytes of the files, whole or in pieces; what did not change is linked."""

import itertools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worker_hooks.share_folder import load_shares
from worker_hooks.training.files import digests
from worker_hooks.training.files.share_files import ALIGN, BLOCK
from worker_hooks.training.saving import copying, shares, staging
from worker_hooks.training.saving.background import wait_until
from worker_hooks.training.saving.share_writer import Written, write_share
from worker_hooks.training.saving.shares import Dealer, plan_share
from worker_hooks.training.saving.stages import Stages
from worker_hooks.training.saving.staging import Buffer, PieceStage, Stage, lay_out, room
from worker_hooks.training.state.tracked import Parts

pytestmark = pytest.mark.torch

KINDS = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)


def state(frozen: int = 1 << 19) -> dict[str, torch.Tensor]:
    """Frozen parts of 2 MiB, trained ones, and the odd shapes."""
    return {
        "frozen": torch.randn(frozen),
        "trained": torch.randn(3000, 7),
        "strided": torch.randn(40, 60).t(),
        "empty": torch.empty(0, 4),
        "step": torch.tensor(1.0),
        **{str(kind): torch.randn(3, 5).to(kind) for kind in KINDS},
    }


def stage(stages: Stages, tensors: dict[str, torch.Tensor]) -> Any:
    share, found = Dealer(0, 1).deal(Parts(shared=tensors))
    staged = stages.stage(share, share.tensors(found))
    if isinstance(staged, Stage):
        staged.fill(share.tensors(found))
    return staged


def save(run: Path, step: int, stages: Stages, tensors: dict[str, torch.Tensor], *, commit: bool = True) -> Written:
    folder = run / f"step-{step:08d}.g1"
    folder.mkdir(parents=True)
    staged = stage(stages, tensors)
    written = write_share(folder, 0, staged, "xxh3_128", kept=stages.kept)
    stages.learn(staged.share, written)
    if commit:
        (folder / "manifest.json").touch()
    return written


def loads_as(folder: Path, tensors: dict[str, torch.Tensor]) -> bool:
    found = {key: torch.zeros(value.shape, dtype=value.dtype) for key, value in tensors.items()}
    load_shares(folder, 1, found)
    return digests.tensors_digest(found) == digests.tensors_digest(tensors)


# --- the deal -----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5000), max_size=30), st.integers(1, 5))
def test_every_tensor_is_dealt_to_exactly_one_rank(sizes: list[int], world: int) -> None:
    parts = Parts(shared={f"w{i}": torch.empty(size) for i, size in enumerate(sizes)})
    dealt = [shares.my_share(parts, rank, world) for rank in range(world)]
    assert sorted(key for share in dealt for key in share) == sorted(parts.shared)
    loads = [sum(tensor.nbytes for tensor in share.values()) for share in dealt]
    assert max(loads) - min(loads) <= 4 * max(sizes, default=0)


def test_a_deal_is_made_again_only_when_a_shape_or_a_type_is_another() -> None:
    dealer = Dealer(0, 2)
    first, _ = dealer.deal(Parts(shared={"a": torch.zeros(4), "b": torch.zeros(8)}))
    same, tensors = dealer.deal(Parts(shared={"a": torch.ones(4), "b": torch.ones(8)}))
    assert same is first and all(bool(tensor.all()) for tensor in same.tensors(tensors))
    other, _ = dealer.deal(Parts(shared={"a": torch.zeros(4), "b": torch.zeros(8, dtype=torch.float64)}))
    assert other is not first


# --- the image ----------------------------------------------------------------------------------------------------


def test_the_staged_bytes_are_the_file(tmp_path: Path) -> None:
    tensors = state()
    written = save(tmp_path, 1, Stages(), tensors)
    folder = tmp_path / "step-00000001.g1"
    index = json.loads((folder / "rank-00000.d/index.json").read_text())
    assert index["version"] == 2
    data = (folder / "rank-00000.d/tensors.bin").read_bytes()
    for chunk in index["chunks"]:
        assert chunk["file"] == "tensors.bin" and chunk["start"] % ALIGN == 0
        part = data[chunk["start"] : chunk["start"] + chunk["bytes"]]
        assert part == bytes(digests.raw_bytes(tensors[chunk["key"]].contiguous()))
        hasher = digests.new_hasher("xxh3_128")
        hasher.update(part)
        assert chunk["digest"] == f"xxh3_128:{hasher.hexdigest()}"
    assert {entry.name: entry.digest for entry in written.files} == {
        entry.name: digests.file_digest(folder / entry.name, "xxh3_128") for entry in written.files
    }
    assert loads_as(folder, tensors)


@pytest.mark.parametrize("limit", [BLOCK, 3 * BLOCK, 1 << 20])
def test_a_share_beyond_the_memory_limit_is_written_in_pieces_to_the_same_file(tmp_path: Path, limit: int) -> None:
    tensors = state()
    save(tmp_path / "whole", 1, Stages(), tensors)
    stages = Stages(limit)
    written = save(tmp_path / "pieces", 1, stages, tensors)
    assert isinstance(stage(stages, tensors), PieceStage)
    assert loads_as(tmp_path / "pieces/step-00000001.g1", tensors)
    index = [tmp_path / kind / "step-00000001.g1/rank-00000.d/index.json" for kind in ("whole", "pieces")]
    assert index[0].read_text() == index[1].read_text(), "the same chunks with the same digests at the same places"
    assert written.files[0].bytes == (tmp_path / "whole/step-00000001.g1/rank-00000.d/tensors.bin").stat().st_size


def test_a_memory_limit_below_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="host_memory=100"):
        Stages(100)


def test_the_memory_is_found_once_and_used_by_every_save(tmp_path: Path) -> None:
    stages = Stages()
    tensors = state()
    share, _ = Dealer(0, 1).deal(Parts(shared=tensors))
    stages.allocate(share, pinned=False)
    before = stages._buffer
    for step in range(1, 5):
        tensors["trained"].add_(1)
        save(tmp_path, step, stages, tensors)
    assert stages._buffer is before and before is not None


def test_what_is_staged_does_not_follow_the_run() -> None:
    tensors = {"a": torch.zeros(100)}
    staged = stage(Stages(), tensors)
    tensors["a"].fill_(7)
    assert not staged.tensors[0].any()


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=8), st.sets(st.integers(0, 7)))
def test_images_never_overlap_and_begin_on_blocks(sizes: list[int], apart: set[int]) -> None:
    share = plan_share({str(i): torch.empty(size, dtype=torch.uint8) for i, size in enumerate(sizes)})
    images = lay_out(share.chunks, {index for index in apart if index < len(sizes)})
    assert all(image.at % BLOCK == 0 for image in images)
    spans = sorted((image.at + one.start, one.bytes) for image in images for one in image.placed)
    assert all(start + length <= after for (start, length), (after, _) in itertools.pairwise(spans))
    assert sum(length for _, length in spans) == sum(sizes)
    assert room(images) >= max(start + length for start, length in spans)
    Stage(share, images, Buffer(room(images))).fill([torch.zeros(size, dtype=torch.uint8) for size in sizes])


# --- written while it is copied -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9000), min_size=1, max_size=8), st.sets(st.integers(0, 7)))
def test_the_writer_gets_every_byte_once_whatever_the_groups(sizes: list[int], apart: set[int]) -> None:
    tensors = {str(i): torch.randint(0, 255, (size,), dtype=torch.uint8) for i, size in enumerate(sizes)}
    share = plan_share(tensors)
    images = lay_out(share.chunks, {index for index in apart if index < len(sizes)})
    staged = Stage(share, images, Buffer(room(images)))
    with pytest.MonkeyPatch.context() as small:
        small.setattr(staging, "_GROUP", 1000)
        with ThreadPoolExecutor(1) as writer:
            got = writer.submit(lambda: [b"".join(staged.windows(image)) for image in images])
            staged.fill(share.tensors(tensors))
    for image, data in zip(images, got.result(), strict=True):
        assert len(data) == -(-image.bytes // BLOCK) * BLOCK
        for placed in image.placed:
            part = data[placed.start : placed.start + placed.bytes]
            assert part == bytes(digests.raw_bytes(tensors[share.keys[placed.index]]))


def test_bytes_reach_the_disk_before_the_copy_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {str(i): torch.randn(1 << 20) for i in range(4)}
    share, found = Dealer(0, 1).deal(Parts(shared=tensors))
    staged = Stages().stage(share, share.tensors(found))
    assert isinstance(staged, Stage)
    path = tmp_path / "rank-00000.d/tensors.bin"
    groups: list[int] = []

    def copy_slowly(*said: Any, **more: Any) -> None:
        if len(groups) == 1:
            assert wait_until(lambda: path.exists() and path.stat().st_size > 0, 30.0)
        groups.append(len(said[0]))
        copying.copy(*said, **more)

    monkeypatch.setattr(staging, "_GROUP", 8 << 20)
    monkeypatch.setattr(staging, "copy", copy_slowly)
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(write_share, tmp_path, 0, staged, "xxh3_128")
        staged.fill(share.tensors(found))
    assert groups == [2, 2]
    assert written.result().bytes > 16 << 20
    assert loads_as(tmp_path, tensors)


def test_a_copy_that_fails_is_a_failed_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"a": torch.randn(100)}
    share, found = Dealer(0, 1).deal(Parts(shared=tensors))
    staged = Stages().stage(share, share.tensors(found))
    assert isinstance(staged, Stage)

    def broken(*said: Any, **more: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(staging, "copy", broken)
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(write_share, tmp_path, 0, staged, "xxh3_128")
        with pytest.raises(RuntimeError, match="illegal"):
            staged.fill(share.tensors(found))
    with pytest.raises(OSError, match=r"not copied: RuntimeError: CUDA error"):
        written.result()


# --- what does not change -----------------------------------------------------------------------------------------


def test_what_does_not_change_is_written_twice_and_linked_from_then_on(tmp_path: Path) -> None:
    stages, tensors = Stages(), state()
    frozen = tensors["frozen"].nbytes + tensors["strided"].nbytes
    for step, (linked, files) in enumerate([(0, 2), (0, 2), (0, 3), (frozen, 3), (frozen, 3)], start=1):
        tensors["trained"].add_(1)
        written = save(tmp_path, step, stages, tensors)
        assert (written.linked, len(written.files)) == (linked, files), step
        assert loads_as(tmp_path / f"step-{step:08d}.g1", tensors)
    (kept,) = (tmp_path / "step-00000005.g1/rank-00000.d").glob("kept-*.bin")
    assert kept.stat().st_nlink == 3
    assert written.bytes > written.linked, "the bytes of a checkpoint are all of its bytes, linked or not"


def test_a_part_that_changes_after_all_is_written(tmp_path: Path) -> None:
    stages, tensors = Stages(), state()
    for step in range(1, 5):
        save(tmp_path, step, stages, tensors)
    tensors["frozen"].add_(1)
    assert save(tmp_path, 5, stages, tensors).linked == 0
    assert loads_as(tmp_path / "step-00000005.g1", tensors)


def test_a_dense_state_is_never_kept_apart(tmp_path: Path) -> None:
    stages, tensors = Stages(), {"a": torch.randn(1 << 19), "b": torch.randn(100)}
    for step in range(1, 5):
        tensors["a"].add_(1)
        assert save(tmp_path, step, stages, tensors).linked == 0
        assert not list(tmp_path.glob("*/rank-00000.d/kept-*"))


@pytest.mark.parametrize("why", ["uncommitted", "quarantined", "gone", "no links"])
def test_what_cannot_be_linked_is_written_again(tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stages, tensors = Stages(), state()
    for step in (1, 2, 3):
        save(tmp_path, step, stages, tensors)
    third = tmp_path / "step-00000003.g1"
    if why == "uncommitted":
        (third / "manifest.json").unlink()
    elif why == "quarantined":
        (third / "quarantine.json").touch()
    elif why == "gone":
        next(third.glob("*/kept-*")).unlink()
    else:

        def refused(*_: Any) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "link", refused)
    assert save(tmp_path, 4, stages, tensors).linked == 0
    assert loads_as(tmp_path / "step-00000004.g1", tensors)
