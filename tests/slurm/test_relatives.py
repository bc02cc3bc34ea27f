"""Relatives of the given cases: other spellings, other orders, the opposite verdict."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controller.slurm import durations, hostlist, jobids, reasons, states
from controller.slurm.views import HoldKind, JobView

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("drain", "drained"), ("drng*", "draining*"), ("alloc", "allocated"), ("mix-", "mixed-"),
        ("comp", "completing"), ("plnd", "planned"), ("resv", "reserved"), ("boot^", "reboot^"), ("failg", "failing"),
        ("futr", "future"), ("maint", "maintenance"), ("unk*", "unknown*"),
    ],
)  # fmt: skip
def test_sinfos_short_codes_say_what_its_words_say(code: str, word: str) -> None:
    short, long = states.parse_node(code), states.parse_node(word)
    assert (short.base, short.flags, short.label) == (long.base, long.flags, long.label)


def test_a_node_that_is_drained_is_not_one_that_is_draining() -> None:
    assert states.parse_node("drain").label == "drained"
    assert states.parse_node("drng").label == "draining"


@pytest.mark.parametrize(
    ("text", "base", "flags"),
    [
        ("DRAIN+IDLE", "IDLE", {"DRAIN"}),
        ("MAINT+ALLOC", "ALLOCATED", {"MAINTENANCE"}),
        ("NOT_RESPONDING+DOWN*", "DOWN", {"NOT_RESPONDING"}),
        (" IDLE + DRAIN ", "IDLE", {"DRAIN"}),
        ("IDLE+DRAINED", "IDLE", {"DRAIN"}),
        ("mixed+comp+draining", "MIXED", {"COMPLETING", "DRAIN"}),
        ("IDLE+REBOOT", "IDLE", {"REBOOT_ISSUED"}),
        (["drain", "mixed"], "MIXED", {"DRAIN"}),
        (["IDLE", "CLOUD", "POWERED_DOWN"], "IDLE", {"CLOUD", "POWERED_DOWN"}),
    ],
)
def test_nodes_in_other_orders_and_spellings(text: str | list[str], base: str, flags: set[str]) -> None:
    state = states.parse_node(text)
    assert (state.base, state.flags) == (base, flags)


@pytest.mark.parametrize("text", ["IDLE+DRAINED", "MIXED+DRAINING", "IDLE+REBOOT", "IDLE+POWER_DRAIN", "IDLE + DRAIN"])
def test_no_spelling_of_a_node_that_is_out_makes_it_usable(text: str) -> None:
    assert not states.parse_node(text).usable


@pytest.mark.parametrize(
    ("code", "word"),
    [("PD", "PENDING"), ("CG", "COMPLETING"), ("CA", "CANCELLED"), ("OOM", "OUT_OF_MEMORY"), ("RH", "REQUEUE_HOLD"),
     ("nf", "NODE_FAIL"), ("S", "SUSPENDED"), ("SE", "SPECIAL_EXIT")],
)  # fmt: skip
def test_squeues_short_codes_say_what_its_words_say(code: str, word: str) -> None:
    short, long = states.parse_job(code), states.parse_job(word)
    assert (short.base, short.flags, short.blame) == (long.base, long.flags, long.blame)


def test_who_cancelled_is_read_over_wide_blanks() -> None:
    assert states.parse_job("CANCELLED  by  1001").cancelled_by == 1001
    assert states.parse_job("CANCELLED by somebody").cancelled_by is None


@pytest.mark.parametrize("value", [None, 30, 5400.0, b"30", [], {"number": 30}])
def test_what_is_no_text_is_an_unknown_duration(value: object) -> None:
    assert durations.parse(value) is durations.UNKNOWN  # type: ignore[arg-type]


def test_minus_one_is_slurms_other_spelling_of_no_limit() -> None:
    assert durations.parse("-1") is durations.UNLIMITED
    assert durations.parse("-5") is durations.UNKNOWN
    assert durations.parse("1") == timedelta(minutes=1)


def test_a_bracketed_none_is_no_host() -> None:
    assert hostlist.expand("(None)") == []
    with pytest.raises(ValueError, match="no part of a host name"):
        hostlist.expand("(gn1)")


def test_a_job_held_after_its_environment_failed_is_held() -> None:
    held = reasons.hold_kind("(user env retrieval failed requeued held)")
    assert held is reasons.hold_kind("user_env_retrieval_failed_requeued_held") is HoldKind.LAUNCH_FAILED
    assert reasons.hold_kind("(BeginTime)") is None


def test_a_null_list_of_unavailable_nodes_is_an_empty_one() -> None:
    assert reasons.blocked_by("(ReqNodeNotAvail, UnavailableNodes:(null))") == reasons.Blocked(False)
    assert reasons.blocked_by("(ReqNodeNotAvail, UnavailableNodes:gn1)").nodes == ("gn1",)


@pytest.mark.parametrize(
    ("tasks", "task", "waits"),
    [
        ("5-9%2", 9, True),
        ("5-9%2", 10, False),
        ("5-9%2", 2, False),
        ("5-9", 4, False),
        ("0", 0, True),
        ("1,3,8-20:4", 12, True),
        ("1,3,8-20:4", 13, False),
        ("1,3-7:2", 5, True),
        ("1,3-7:2", 6, False),
        ("1,4,9,...%3", 9, True),
        ("1,4,9,...%3", 8, False),
        ("1,4,9,...%3", 25, True),  # Slurm cut the list: it may be there
        ("", 0, False),
    ],
)
def test_a_task_that_waits_in_a_record_of_many(tasks: str, task: int, waits: bool) -> None:
    assert jobids.waits_in(tasks, task) is waits
    record = JobView("7_[x]", 7, states.parse_job("PENDING"), array_job_id=7, array_tasks=tasks)
    assert jobids.parse(f"7_{task}").names(record) is waits


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("block", "BLOCKED"), ("ext", "EXTERNAL"), ("canc_r", "CANCEL_REBOOT"), ("pow_dn", "POWER_DOWN"),
        ("pow_up", "POWER_UP"), ("powring_dn", "POWERING_DOWN"), ("powered_dn", "POWERED_DOWN"), ("resm", "RESUME"),
    ],
)  # fmt: skip
def test_the_codes_of_the_newest_sinfo(code: str, word: str) -> None:
    short, long = states.parse_node(code), states.parse_node(word)
    assert (short.base, short.flags) == (long.base, long.flags) and short.flags


def test_sinfos_mark_for_a_node_that_jobs_are_leaving() -> None:
    assert states.parse_node("alloc+").flags == {"COMPLETING"} == states.parse_node("ALLOCATED+COMPLETING").flags
    assert states.parse_node("alloc").flags == frozenset()


@pytest.mark.parametrize("text", ["RUNNING+FROBBING", ["RUNNING", "FROBBING"], ["FROBBING", "running"]])
def test_a_flag_never_heard_of_is_kept_beside_the_base(text: str | list[str]) -> None:
    state = states.parse_job(text)
    assert (state.base, state.flags) == ("RUNNING", {"FROBBING"}) and state.running and state.live
    assert states.parse_node("IDLE+FROBBING").flags == {"FROBBING"} and states.parse_node("IDLE+FROBBING").usable


def test_a_state_never_heard_of_is_unknown_and_shown() -> None:
    state = states.parse_job("FROBBED")
    assert (state.base, state.flags, state.raw) == ("UNKNOWN", frozenset(), "FROBBED")
    assert not state.live and not state.terminal and states.parse_node("FROBBED").base == "UNKNOWN"


@pytest.mark.parametrize(
    ("text", "tasks", "limit"),
    [("7_[1,2,...]", "1,2,...", None), ("7_[1-3,...%5]", "1-3,...", 5), ("7_[1-10:3%2]", "1-10:3", 2)],
)
def test_task_lists_that_slurm_cut_short(text: str, tasks: str, limit: int | None) -> None:
    found = jobids.parse(text)
    assert (found.job, found.tasks, found.limit) == (7, tasks, limit)


@pytest.mark.parametrize("text", ["7_[,]", "7_[-]", "7_[3-1]", "7_[1,,2]", "7;a;b", "0", "00", "7_[...]"])
def test_what_only_looks_like_a_job_id(text: str) -> None:
    with pytest.raises(ValueError, match="not a Slurm job id"):
        jobids.parse(text)


@pytest.mark.parametrize(
    ("reason", "nodes"),
    [
        ("ReqNodeNotAvail, UnavailableNodes: gn1", ("gn1",)),
        ("ReqNodeNotAvail, UnavailableNodes: gn04, gn05", ("gn04", "gn05")),
        ("ReqNodeNotAvail,_UnavailableNodes:gn[04,07],x1", ("gn04", "gn07", "x1")),
        ("ReqNodeNotAvail(UnavailableNodes:gn[1-2])", ("gn1", "gn2")),
    ],
)
def test_unavailable_nodes_however_they_are_listed(reason: str, nodes: tuple[str, ...]) -> None:
    assert reasons.blocked_by(reason) == reasons.Blocked("if-required", nodes)
