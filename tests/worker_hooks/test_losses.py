"""A rank's own record of its losses: what a broken disk makes of a line is no other loss."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_hooks.protocol.losses import loss_record, read_losses

pytestmark = pytest.mark.pure

LOSSES = {1: (0.5).hex(), 12: (2.25).hex(), 13: "nan"}


def record(run: Path, lines: list[bytes], generation: int = 1) -> None:
    (run / "losses").mkdir(exist_ok=True)
    (run / "losses" / f"rank-00000.g{generation}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))


def encoded(losses: dict[int, str]) -> list[bytes]:
    return [json.dumps(loss_record(step, loss)).encode() for step, loss in losses.items()]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    record(tmp_path, encoded(LOSSES))
    assert read_losses(tmp_path, 0) == LOSSES


def test_a_flipped_bit_anywhere_costs_lines_and_never_makes_a_loss(tmp_path: Path) -> None:
    whole = b"\n".join(encoded(LOSSES))
    lost = 0
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        record(tmp_path, [bytes(damaged)])
        found = read_losses(tmp_path, 0)
        assert found.items() <= LOSSES.items(), f"bit {bit}"
        assert len(found) >= len(LOSSES) - 2, f"bit {bit}: a line break that is gone costs two lines at most"
        lost += len(found) < len(LOSSES)
    assert lost


def test_lines_of_earlier_versions_are_read(tmp_path: Path) -> None:
    record(tmp_path, [b'{"step": 3, "loss": "0x1.0p+0"}', *encoded({4: "0x1.0p+1"}), b'{"step": 5, "loss": "0x1'])
    assert read_losses(tmp_path, 0) == {3: (1.0).hex(), 4: (2.0).hex()}


@given(st.binary(max_size=200))
def test_garbage_is_no_loss(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    run = tmp_path_factory.mktemp("run")
    record(run, [garbage, *encoded({4: "0x1.0p+1"})])
    assert read_losses(run, 0)[4] == (2.0).hex()
