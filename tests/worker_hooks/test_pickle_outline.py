"""What a pickle holds, read without running it: plain data as they are, objects as notes, anything broken refused."""

import io
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from worker_hooks.signs.pickle_outline import Opaque, read_outline
from worker_hooks.signs.plain_pickle import RefusedPickle

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_come_out_as_they_are(protocol: int) -> None:
    value = {"a": [1, 2.5, None, True, "x"], "b": {"c": (1, (2, 3))}, "d": {1, 2}, "e": frozenset([3]), (1, 2): b"y"}
    assert (
        read_outline(pickle.dumps(value, protocol=protocol)) == value or protocol < 4
    )  # bytes and sets are calls before that


@pytest.mark.parametrize("protocol", range(6))
def test_objects_are_notes(protocol: int) -> None:
    class_state = read_outline(pickle.dumps({"x": Path("/tmp"), "y": OrderedDict(k=1)}, protocol=protocol))
    assert isinstance(class_state, dict)
    assert isinstance(class_state["x"], Opaque) and class_state["y"] == {"k": 1}


def test_persistent_ids_are_notes() -> None:
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> Any:
            return ("storage", 1) if isinstance(obj, io.BytesIO) else None

    out = io.BytesIO()
    Pickler(out, protocol=2).dump({"s": io.BytesIO()})
    found = read_outline(out.getvalue())
    assert isinstance(found, dict) and isinstance(found["s"], Opaque) and found["s"].args == ("storage", 1)


@pytest.mark.parametrize("data", [b"", b".", b"\x80\x02", b"R.", b"0.", b"h\x07.", b"\x80\x02}X", b"\x81."])
def test_broken_outlines_are_refused(data: bytes) -> None:
    with pytest.raises(RefusedPickle):
        read_outline(data)


def test_an_outline_is_bounded() -> None:
    with pytest.raises(RefusedPickle, match="instructions"):
        read_outline(b"(" * 1000, max_instructions=100)
