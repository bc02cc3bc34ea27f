"""What the command-line adapter sends when it writes, whether a failed write may have happened, and reservations."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from controller.errors import RefusalKind, SlurmRefused, SlurmUnavailable
from controller.slurm.cli import CliSlurm
from controller.slurm.refusals import error_from
from controller.slurm.runner import Completed, Runner
from tests.slurm.scripted import NOW, RESERVATION, ScriptedRunner, said, slurm

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("done", "unknown"),
    [
        (said(rc=None, timed_out=True), True),
        (said(rc=-15), True),
        (said(err="Unexpected message received for job 7", rc=1), True),
        (said(err="slurm_update error: Socket timed out on send/recv operation", rc=1), True),
        (said(err="slurm_update error: Unable to contact slurm controller (connect failure)", rc=1), False),
        (OSError(2, "no scontrol"), False),
    ],
)
def test_whether_a_write_may_have_happened(done: Completed | OSError, unknown: bool) -> None:
    port, _ = slurm({"": done})
    with pytest.raises(SlurmUnavailable) as away:
        port.requeue_job("7", hold=True)
    assert away.value.outcome_unknown is unknown
    with pytest.raises(SlurmUnavailable) as away:
        port.read_node("gpu1")
    assert away.value.outcome_unknown is False


def test_a_write_that_failed_without_a_word_may_have_arrived() -> None:
    silent = error_from(" \n", call="scontrol requeuehold", write=True)
    assert isinstance(silent, SlurmUnavailable) and silent.outcome_unknown
    read = error_from("", call="scontrol show", write=False)
    assert isinstance(read, SlurmUnavailable) and not read.outcome_unknown


def test_an_unknown_refusal_keeps_its_text() -> None:
    port, _ = slurm({"": said(err="something new\n", rc=1)})
    with pytest.raises(SlurmRefused) as refused:
        port.hold_job("7")
    assert refused.value.kind is RefusalKind.OTHER and refused.value.text == "something new"


def test_every_write_is_one_call_with_separate_arguments() -> None:
    port, runner = slurm({"": said("")})
    port.drain_node("gpu2", "relume: x=1 'y' \"z\"")
    port.down_node("gpu2", "relume: gone")
    port.resume_node("gpu2")
    port.hold_job("123_4")
    port.release_job("123_4")
    port.requeue_job("123_4", hold=True)
    port.requeue_job("7", hold=False)
    port.exclude_nodes("7", ["gpu3", "gpu1", "gpu2"], start_time="now")
    port.exclude_nodes("7", [])
    port.set_start_now("7")
    port.cancel_job("7")
    port.cancel_job("7", signal="USR2")
    port.update_comment("7", "relume: run=1")
    port.reserve_nodes("relume-1", ["gpu2", "gpu1"], user="ada", minutes=5)
    port.delete_reservation("relume-1")
    port.set_reservation("7", "relume-1")
    port.set_reservation("7", "")
    assert runner.asked == [
        ["scontrol", "update", "NodeName=gpu2", "State=DRAIN", "Reason=relume: x=1 'y' \"z\""],
        ["scontrol", "update", "NodeName=gpu2", "State=DOWN", "Reason=relume: gone"],
        ["scontrol", "update", "NodeName=gpu2", "State=RESUME"],
        ["scontrol", "hold", "123_4"],
        ["scontrol", "release", "123_4"],
        ["scontrol", "requeuehold", "123_4"],
        ["scontrol", "requeue", "7"],
        ["scontrol", "update", "JobId=7", "ExcNodeList=gpu[1-3]", "StartTime=now"],
        ["scontrol", "update", "JobId=7", "ExcNodeList="],
        ["scontrol", "update", "JobId=7", "StartTime=now"],
        ["scancel", "--verbose", "7"],
        ["scancel", "--verbose", "--signal=USR2", "7"],
        ["scontrol", "update", "JobId=7", "Comment=relume: run=1"],
        ["scontrol", "create", "ReservationName=relume-1", "Nodes=gpu[1-2]", "Users=ada", "StartTime=now", "Duration=5",
         "Flags=IGNORE_JOBS,FLEX,NO_HOLD_JOBS_AFTER"],
        ["scontrol", "delete", "ReservationName=relume-1"],
        ["scontrol", "update", "JobId=7", "ReservationName=relume-1"],
        ["scontrol", "update", "JobId=7", "ReservationName="],
    ]  # fmt: skip


def test_node_and_job_writes_may_have_credentials_of_their_own() -> None:
    reader, jobs, nodes = (ScriptedRunner({"": said("")}) for _ in range(3))
    port = CliSlurm(lambda: NOW, cast(Runner, reader), job_writer=cast(Runner, jobs), node_writer=cast(Runner, nodes))
    port.drain_node("gpu1", "x")
    port.hold_job("7")
    port.set_reservation("7", "x")
    port.reserve_nodes("x", ["gpu1"], user="ada", minutes=1)
    port.delete_reservation("x")
    assert (len(reader.asked), len(jobs.asked), len(nodes.asked)) == (0, 4, 1)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error creating the reservation: Duplicate reservation name", RefusalKind.EXISTS),
        ("Error creating the reservation: Requested reservation overlaps with another reservation",
         RefusalKind.OVERLAPS),
        ("delete_reservation ReservationName=x: Requested reservation is in use", RefusalKind.IN_USE),
        ("Requested reservation is invalid for job 7", RefusalKind.INVALID_RESERVATION),
        ("Access denied to requested reservation for job 7", RefusalKind.NOT_PERMITTED),
        ("Error creating the reservation: Invalid node name specified", RefusalKind.BAD_NODES),
    ],
)  # fmt: skip
def test_refusals_of_reservations(text: str, kind: RefusalKind) -> None:
    port, _ = slurm({"show reservation": said(err="Reservation x not found", rc=1), "": said(err=text, rc=1)})
    calls: list[Callable[[], None]] = [lambda: port.reserve_nodes("x", ["gpu1"], user="ada", minutes=1)]
    for call in [*calls, lambda: port.delete_reservation("x"), lambda: port.set_reservation("7", "x")]:
        with pytest.raises(SlurmRefused) as refused:
            call()
        assert refused.value.kind is kind


def test_a_name_that_is_taken_is_told_from_nodes_that_are_taken() -> None:
    """Slurm looks at the nodes first: for our own reservation, made a moment ago, it only speaks of an overlap."""
    overlap = said(err="Requested reservation overlaps with another reservation", rc=1)
    port, runner = slurm({"show reservation": said(RESERVATION), "create": overlap})
    with pytest.raises(SlurmRefused) as refused:
        port.reserve_nodes("relume-x", ["gpu1"], user="ada", minutes=1)
    assert refused.value.kind is RefusalKind.EXISTS and len(runner.asked) == 2


@pytest.mark.parametrize(
    ("name", "user"), [("", "ada"), ("a,b", "ada"), ("-x", "ada"), ("x", "a,b"), ("x", ""), ("x\n", "a")]
)
def test_what_is_no_reservation_never_reaches_slurm(name: str, user: str) -> None:
    port, runner = slurm({"": said("")})
    with pytest.raises(ValueError, match="not one"):
        port.reserve_nodes(name, ["gpu1"], user=user, minutes=1)
    with pytest.raises(ValueError, match="no nodes or no time"):
        port.reserve_nodes("x", [], user="ada", minutes=1)
    assert runner.asked == []


def test_one_reservation() -> None:
    port, _ = slurm({"show reservation": said(RESERVATION)})
    found = port.read_reservation("relume-x")
    assert found is not None and found.nodes == ("gpu1", "gpu2")
    port, _ = slurm({"show reservation": said(err="Reservation relume-x not found\n", rc=1)})
    assert port.read_reservation("relume-x") is None
    port, _ = slurm({"show reservation": said(err="error: Socket timed out on send/recv operation", rc=1)})
    with pytest.raises(SlurmUnavailable):
        port.read_reservation("relume-x")
