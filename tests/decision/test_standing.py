"""What the stacks of stuck ranks say: who waits, who is elsewhere, when nobody can tell; and whose are asked for."""

from dataclasses import replace
from typing import Any

import pytest

from controller.decision import stalls
from controller.decision.assess import assess
from controller.decision.assess.standing import DRIVER, FILES, KERNEL, LOADS, PROGRAM, STORAGE, WAITS, place
from controller.decision.assessment import LOW, MEDIUM
from controller.decision.evidence import JOB, Case, Evidence
from controller.decision.facts import NodeFact, SubjectFacts
from controller.decision.findings import DATA_OR_STORAGE, HANG
from controller.decision.refine import refined
from controller.decision.stack_wishes import MOST_RANKS, MOST_STALLS, wanted
from controller.decision.stalls import stalled
from controller.knowledge.load import load
from tests.decision.quiet import NOW, POLICY
from tests.decision.test_stalls import LONG, everybody, rank, world

pytestmark = pytest.mark.pure

POLICY = replace(POLICY, knowledge=load())
TORCH = "/usr/lib/python3/site-packages/torch"
ALL_REDUCE = [("all_reduce", f"{TORCH}/distributed/distributed_c10d.py"), ("train", "/home/ada/train.py")]
LOADER = [("wait", "/usr/lib/python3.11/threading.py"), ("_next_data", f"{TORCH}/utils/data/dataloader.py")]
OWN = [("tokenize", "/home/ada/text.py"), ("train", "/home/ada/train.py")]
SAVE = [("gather_object", f"{TORCH}/distributed/checkpoint/utils.py"), ("save", "/home/ada/train.py")]


def stack(number: int, frames: list[tuple[str, str]], at: float = NOW - 2.0, **attrs: Any) -> Evidence:
    told: dict[str, Any] = {"state": "S", "gpu": False, "text": frames[0][0] if frames else "state S"}
    if frames:
        told["frames"] = "\n".join(f"{function}\t{file}" for function, file in frames)
    node = "gpu1" if number < 2 else "gpu2"
    return Evidence(
        f"sign:{number}:{at}", "stack.stuck", "process", "stacks", JOB, f"rank {number}: {frames}", at, node, number,
        told | attrs, job="tj-0123456789ab",
    )  # fmt: skip


def waits(number: int) -> Evidence:
    return stack(number, ALL_REDUCE)


def judged(*evidence: Evidence, **facts: Any) -> Any:
    """The stall of `test_stalls`, found, and what the stacks make of it."""
    subject = world(evidence=evidence, **facts)
    finding = stalled(subject, NOW, POLICY)
    assert finding is not None
    return refined(subject, finding, NOW, POLICY)


# --- one stack ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "attrs", "expected"),
    [
        (ALL_REDUCE, {}, WAITS),
        (ALL_REDUCE, {"state": "D", "wchan": "nvidia_poll"}, WAITS),
        ([("step", "/home/ada/t.py"), ("Work.wait", f"{TORCH}/distributed/c10d.py")], {}, WAITS),
        ([("_engine_run_backward", f"{TORCH}/autograd/graph.py")], {}, WAITS),
        ([("barrier", "/opt/own/comm.py")], {}, WAITS),
        (LOADER, {}, LOADS),
        ([("TextSet.__getitem__", "/home/ada/text.py")], {"gpu": True}, LOADS),
        (SAVE, {}, FILES),
        ([("read_bytes", "/usr/lib/python3.11/pathlib.py")], {"gpu": True}, FILES),
        (OWN, {}, PROGRAM),
        (OWN, {"gpu": True, "wchan": "hrtimer_nanosleep"}, PROGRAM),
        (OWN, {"gpu": True, "state": "R"}, ""),
        (OWN, {"gpu": True, "wchan": "futex_wait_queue"}, ""),
        ([], {"wchan": "futex_wait_queue"}, ""),
        ([], {"state": "D", "wchan": "nfs_wait_bit_killable"}, STORAGE),
        ([], {"state": "S", "wchan": "nfs_wait_bit_killable"}, ""),
        (OWN, {"state": "D", "wchan": "ptlrpc_set_wait", "gpu": True}, STORAGE),
        ([], {"state": "D", "kernel_stack": "folio_wait_bit_common < nfs_read_folio"}, STORAGE),
        ([], {"state": "D", "wchan": "uvm_va_space_down"}, DRIVER),
        ([], {"state": "D", "wchan": "io_schedule"}, KERNEL),
        ([], {"state": "D"}, KERNEL),
    ],
)
def test_where_a_stack_stands(frames: list[tuple[str, str]], attrs: dict[str, Any], expected: str) -> None:
    assert place(stack(1, frames, **attrs)) == expected


# --- all of them --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [LOADER, SAVE, OWN])
def test_the_rank_that_stands_elsewhere_is_named_and_no_node(frames: list[tuple[str, str]]) -> None:
    found = judged(waits(0), waits(1), stack(2, frames), waits(3))
    assert (found.finding.cause, found.finding.ranks, found.finding.suspects) == (HANG, (2,), ())
    assert found.sure and found.assessment.confidence == MEDIUM
    assert (found.assessment.drain, found.assessment.exclude, found.assessment.withheld) == ((), (), ())
    stances = {(clue.rank, clue.stance) for clue in found.finding.clues if clue.code == "stack.stuck"}
    assert stances == {(2, "accuses"), (0, "context"), (1, "context"), (3, "context")}
    assert "rank 2" in found.finding.reason and "ranks 0, 1 and 3 wait" in found.finding.reason


@pytest.mark.parametrize(
    "stacks",
    [
        [waits(0), waits(1), waits(2), waits(3)],
        [stack(0, OWN), stack(1, OWN), stack(2, OWN), stack(3, OWN)],
        [waits(0), stack(1, OWN), stack(2, LOADER), stack(3, SAVE)],
        [stack(0, OWN), stack(1, OWN), waits(2)],
        [stack(2, OWN)],
        [waits(0), waits(1), stack(2, OWN, gpu=True, state="R"), waits(3)],
        [waits(0), stack(1, OWN, gpu=True, state="R"), stack(2, LOADER), waits(3)],
    ],
    ids=["all wait", "nobody waits", "three elsewhere", "most elsewhere", "one alone", "unclear", "another unclear"],
)
def test_nobody_is_named_unless_all_others_wait(stacks: list[Evidence]) -> None:
    found = judged(*stacks)
    assert (found.finding.cause, found.finding.ranks, found.sure) == (HANG, (), False)


def test_a_stack_of_an_earlier_stall_says_nothing() -> None:
    old = [stack(n, LOADER if n == 2 else ALL_REDUCE, at=NOW - LONG - 60.0) for n in range(4)]
    assert judged(*old).finding.ranks == ()
    assert judged(*old, *(waits(n) for n in range(4))).finding.ranks == ()
    again = [stack(n, OWN if n == 3 else ALL_REDUCE) for n in range(4)]
    assert judged(*old, *again).finding.ranks == (3,)


def test_where_progress_names_another_rank_the_stacks_decide_nothing() -> None:
    behind = rank(1, step=99)
    subject = world(behind, evidence=(waits(0), waits(1), stack(2, OWN), waits(3)))
    finding = stalled(subject, NOW, POLICY)
    assert finding is not None and finding.ranks == (1,)
    found = refined(subject, finding, NOW, POLICY)
    assert (found.finding.ranks, found.sure, found.assessment.confidence) == ((1,), False, LOW)  # type: ignore[union-attr]


def test_where_progress_names_the_same_rank_they_agree() -> None:
    subject = world(rank(2, step=99), evidence=(waits(0), waits(1), stack(2, OWN), waits(3)))
    finding = stalled(subject, NOW, POLICY)
    assert finding is not None
    assert refined(subject, finding, NOW, POLICY).sure


@pytest.mark.parametrize("several", [False, True])
def test_ranks_that_wait_for_a_file_system_in_the_kernel_name_the_storage_and_no_node(several: bool) -> None:
    nfs = {"state": "D", "wchan": "nfs_wait_bit_killable"}
    others = [stack(n, [], **nfs) if several else waits(n) for n in (0, 1, 3)]
    found = judged(*others, stack(2, OWN, **nfs))
    assert found.finding.cause == DATA_OR_STORAGE and found.sure
    assert (found.finding.suspects, found.finding.ranks) == ((), () if several else (2,))
    assert (found.assessment.drain, found.assessment.exclude, found.assessment.withheld) == ((), (), ())
    assert found.assessment.requeue_delay_s > 0


def test_storage_is_not_it_where_another_rank_is_elsewhere() -> None:
    nfs = stack(2, [], state="D", wchan="nfs_wait_bit_killable")
    assert judged(waits(0), waits(1), nfs, stack(3, OWN)).finding.cause == HANG


def test_a_run_that_goes_on_is_not_called_hung_for_an_old_stack() -> None:
    """The stall passed; the signs of it are still there."""
    old = tuple(stack(n, LOADER if n == 2 else ALL_REDUCE, at=NOW - 900.0) for n in range(4))
    nfs = stack(1, [], at=NOW - 900.0, state="D", wchan="nfs_wait_bit_killable")
    for evidence in (old, (nfs,)):
        assert assess(Case(evidence=evidence, now=NOW), POLICY.knowledge).verdict == "unknown"


def test_in_a_bundle_they_are_only_a_hint() -> None:
    found = assess(Case(evidence=(waits(0), stack(2, OWN), waits(3))), POLICY.knowledge)
    assert (found.verdict, found.suspect_ranks, found.suspect_nodes, found.confidence) == (
        "hang_unattributed", (2,), (), LOW,
    )  # fmt: skip


# --- whose stacks are asked for -----------------------------------------------------------------------------------


def test_all_ranks_of_a_small_run_by_node() -> None:
    found = stalls.look(world(), NOW, POLICY)
    assert found is not None
    assert wanted(found, ()) == {"gpu1": (0, 1), "gpu2": (2, 3)}


def test_once_for_each_stall_and_not_for_ever() -> None:
    found = stalls.look(world(), NOW, POLICY)
    assert found is not None
    assert wanted(found, [NOW - 1.0]) is None
    assert wanted(found, [NOW - LONG - 1.0]) is not None
    assert wanted(found, [NOW - 9000.0] * MOST_STALLS) is None


def large(*behind: int) -> SubjectFacts:
    """Eight ranks on each of 32 nodes; these are a step behind."""
    ranks = [rank(n, node=f"gpu{n // 8}", step=99 if n in behind else 100) for n in range(256)]
    return world(*ranks, nodes={f"gpu{n}": NodeFact(f"gpu{n}", "ALLOCATED") for n in range(32)})


def test_of_a_large_run_the_suspects_and_some_of_all_others() -> None:
    found = stalls.look(large(77), NOW, POLICY)
    assert found is not None and found.suspects == (77,)
    by_node = wanted(found, ()) or {}
    assert sum(map(len, by_node.values())) == MOST_RANKS and 77 in by_node["gpu9"]
    assert len(by_node) >= MOST_RANKS - 1, "the others are spread over the nodes"


def test_of_many_suspects_some_room_is_left_for_the_others() -> None:
    found = stalls.look(large(*range(100)), NOW, POLICY)
    assert found is not None and len(found.suspects) == 100
    asked = [n for numbers in (wanted(found, ()) or {}).values() for n in numbers]
    assert len(asked) == MOST_RANKS and len([n for n in asked if n >= 100]) == 3


def test_a_rank_that_has_ended_is_not_asked_for() -> None:
    found = stalls.look(world(rank(2, state="exited")), NOW, POLICY)
    assert found is not None and found.suspects == (2,)
    assert wanted(found, ()) == {"gpu1": (0, 1), "gpu2": (3,)}


def test_nothing_is_asked_while_anything_may_be_in_order() -> None:
    assert stalls.look(world(*everybody(1.0)), NOW, POLICY) is None
