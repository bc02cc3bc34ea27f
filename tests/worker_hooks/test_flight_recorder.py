"""Dumps are read whatever wrote them, and run nothing whatever they hold."""

import json
import pickle
import time

import pytest

from worker_hooks.signs import plain_pickle
from worker_hooks.signs.codes import known
from worker_hooks.signs.flight_recorder import fold, read_dump

pytestmark = pytest.mark.pure


def entry(order, collective, state="scheduled", group="5", number=2, **other):
    return {
        "record_id": order,
        "pg_id": number,
        "process_group": (group, "TENSOR"),
        "collective_seq_id": collective,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_796_000_000_000_000_000 + order,
        "input_sizes": [[4, 2]],
        "input_dtypes": ["Float"],
        "state": state,
        "retired": state == "completed",
        "is_p2p": False,
        "frames": [{"name": "f", "filename": "train.py", "line": 3}],
        **other,
    }


def dump(entries, status=None, config=None, version="2.9"):
    return {"version": version, "pg_config": config or {}, "pg_status": status or {}, "entries": entries}


STATUS = {"2": {"last_enqueued_collective": 12, "last_started_collective": 11, "last_completed_collective": 10}}
CONFIG = {"5": {"name": "5", "desc": "TENSOR", "ranks": "[0, 4, 8]"}}
USUAL = dump([entry(0, 10, "completed"), entry(1, 11, "started"), entry(2, 12)], STATUS, CONFIG)


@pytest.mark.parametrize(
    "written", [pickle.dumps(USUAL, protocol) for protocol in range(6)] + [json.dumps(USUAL).encode()]
)
def test_where_a_rank_stands_in_its_group(written):
    (sign,) = read_dump(written, 4, "gpu1")
    assert known(sign.code)
    assert (sign.code, sign.rank, sign.node, sign.at) == ("collective.state", 4, "gpu1", pytest.approx(1_796_000_000))
    expected = {"group": "5", "group_name": "TENSOR", "size": 3, "members": "0-8:4", "enqueued": 12, "started": 11}
    assert (
        sign.attrs.items() >= (expected | {"completed": 10, "waiting": 2, "sequence": 11, "op": "all_reduce"}).items()
    )
    assert (sign.attrs["state"], sign.attrs["sizes"]) == ("started", "[[4, 2]]")


def test_a_pipeline_operation_names_its_peer_in_the_ranks_of_the_job():
    send = entry(1, 3, profiling_name="nccl:send 0->2", p2p_seq_id=77, is_p2p=True)
    (sign,) = read_dump(pickle.dumps(dump([send], STATUS, CONFIG), 2), 0)
    assert (sign.attrs["peer_rank"], sign.attrs["p2p"], sign.attrs["sequence"]) == (8, True, 77)
    assert sign.attrs["enqueued"] == 3  # not the status: there the two kinds are mixed


def test_on_gloo_a_retired_operation_is_finished_and_on_nccl_it_has_timed_out():
    gloo = entry(0, 12, retired=True, profiling_name="gloo:all_reduce")
    done = {"2": {"last_enqueued_collective": "12", "last_completed_collective": "12"}}
    assert read_dump(json.dumps(dump([gloo], done)).encode(), 0)[0].attrs["waiting"] == 0
    timed_out = entry(0, 12, retired=True)
    assert read_dump(json.dumps(dump([timed_out], STATUS)).encode(), 0)[0].attrs["waiting"] == 1


def test_groups_without_entries_are_tied_by_their_order_only_where_everything_agrees():
    config = {name: {"name": name, "desc": "", "ranks": "[0, 1]"} for name in ("0", "5", "31")}
    counters = {"last_enqueued_collective": 7, "last_completed_collective": 7}
    status = {"0": counters, "2": STATUS["2"], "3": counters}
    signs = read_dump(json.dumps(dump([entry(0, 11)], status, config)).encode(), 0)
    assert [sign.attrs["group"] for sign in signs] == ["0", "5", "31"]
    moved = {"0": counters, "1": counters, "2": STATUS["2"]}
    signs = read_dump(json.dumps(dump([entry(0, 11)], moved, config)).encode(), 0)
    assert [sign.attrs["group"] for sign in signs] == ["5"]


def test_the_oldest_formats():
    old = {"seq_id": 9, "pg_id": 0, "profiling_name": "nccl:broadcast", "input_sizes": ((4,),), "state": "started"}
    for written in ([old], {"version": "1.0", "entries": [old]}):
        (sign,) = read_dump(pickle.dumps(written, 2), 1)
        assert (sign.attrs["group"], sign.attrs["sequence"], sign.attrs["completed"]) == ("0", 9, 8)


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w')",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_dump_that_would_run_code_is_refused_by_name_and_runs_nothing(tmp_path, protocol):
    written = pickle.dumps({"entries": [Bomb(tmp_path / "ran")]}, protocol)
    (sign,) = read_dump(written, 3, "gpu1")
    assert (sign.code, sign.rank, sign.node) == ("flight_recorder.refused", 3, "gpu1")
    assert "exec" in sign.attrs["text"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b".",
        b"\x80\x02]r\xff\xff\xff\xffe.",  # a memo number that makes the usual unpickler allocate gigabytes
        b"\x80\x02X\xff\xff\xff\x7f.",  # a text longer than the file
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x02(((",
        b"\x80\x02](h\x00e.",
        b"\x80\x02K\x01Q.",  # a persistent id
        b"\x80\x02}(" + b"(" * 5000 + b"t" * 5000 + b"K\x01u.",  # a nested key: its hash would overflow the stack
        b"[" * 100_000,
        b'{"version": "2.9"}',
        pickle.dumps("text", 2),
        pickle.dumps(USUAL, 2)[:-40],
    ],
)
def test_what_is_broken_or_hostile_is_refused_with_a_reason(written):
    (sign,) = read_dump(written, 0)
    assert sign.code == "flight_recorder.refused"
    assert sign.attrs["text"]


def test_the_reader_is_bounded_in_instructions_and_time(monkeypatch):
    long = b"\x80\x02" + b"N0" * 50_000 + b"N."
    with pytest.raises(plain_pickle.RefusedPickle, match="instructions"):
        plain_pickle.read_plain(long, max_instructions=1000)
    moments = iter([0.0, 0.0, 100.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    with pytest.raises(plain_pickle.RefusedPickle, match="too long"):
        plain_pickle.read_plain(long, max_seconds=5)


def test_wrong_types_inside_a_dump_hurt_nothing():
    odd = {
        "entries": [None, 3, {"pg_id": "x", "process_group": 4, "input_sizes": "no"}],
        "pg_status": {"a": 1, "0": []},
    }
    assert all(sign.code == "collective.state" for sign in read_dump(json.dumps(odd).encode(), 0))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([0, 1, 2, 3], "0-3"), ([0, 4, 8], "0-8:4"), ([0, 2], "0,2"), ([1, 5, 6], "1,5-6"), ([7], "7"), ([], "")],
)
def test_ranks_are_folded(ranks, text):
    assert fold(ranks) == text
