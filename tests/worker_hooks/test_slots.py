"""The slot file: what a rank stores is what an agent reads."""

import os
import struct
import time
from pathlib import Path

import pytest

from worker_hooks.protocol import slots

pytestmark = pytest.mark.pure


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    slots.create_slots(path, 3)
    assert slots.read_slots(path) == [None, None, None]
    with slots.SlotWriter(path, 1) as writer:
        writer.start_step(40)
        writer.phase("training")
        writer.step(41)
        first, slot, last = slots.read_slots(path)
    assert first is None and last is None and slot is not None
    assert (slot.pid, slot.phase, slot.step, slot.start_step, slot.flags) == (os.getpid(), "training", 41, 40, 0)
    assert 0 <= slot.progress_age_s(time.monotonic_ns()) < 60
    slots.clear_slot(path, 1)
    assert slots.read_slots(path) == [None, None, None]


def test_layout_is_the_documented_one(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    slots.create_slots(path, 1)
    with slots.SlotWriter(path, 0) as writer:
        writer.phase("saving")
        writer.step(7)
    data = path.read_bytes()
    assert len(data) == 64
    assert struct.unpack_from("<IIII", data)[0] == 0x524C4D31
    assert struct.unpack_from("<II", data, 4) == (os.getpid(), 4)
    assert struct.unpack_from("<q", data, 16) == (7,)


def test_a_beat_is_not_progress(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    slots.create_slots(path, 1)
    with slots.SlotWriter(path, 0) as writer:
        before = slots.read_slots(path)[0]
        writer.beat()
        after = slots.read_slots(path)[0]
    assert before is not None and after is not None
    assert after.beat_ns > before.beat_ns and after.progress_ns == before.progress_ns


def test_a_slot_outside_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    slots.create_slots(path, 1)
    with pytest.raises(ValueError, match="no slot 1"):
        slots.SlotWriter(path, 1)
