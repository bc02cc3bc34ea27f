"""A suspected stall asks the agents where its ranks stand; what they answer names the rank, and never a node."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller import sweep as sweeping
from controller.clock import aware
from controller.ingest.instructions import STACKS_VALID_S, for_agent
from controller.models import Attempt, Exclusion, Incident, NodeHold, Sign, StackRequest
from tests.scenarios.test_stalls import QUICK, Ranks
from tests.scenarios.world import World
from worker_hooks.protocol.answers import Instruction

pytestmark = [pytest.mark.scenario, pytest.mark.django_db]

TORCH = "/usr/lib/python3/site-packages/torch"
ALL_REDUCE = f"all_reduce\t{TORCH}/distributed/distributed_c10d.py"
LOADER = f"_next_data\t{TORCH}/utils/data/dataloader.py"


@pytest.fixture
def quick(world: World) -> World:
    world.policy = replace(world.policy, stall=QUICK)
    world.start()
    return world


def told(world: World, node: str) -> list[Instruction]:
    attempt = Attempt.objects.order_by("-generation")[0]
    orders = for_agent(world.job(), attempt, node, attempt.generation, world.now)
    return [order for order in orders if order.kind == "stacks"]


def answer(world: World, node: str, ranks: Sequence[int], frames: str, **attrs: Any) -> None:
    for rank in ranks:
        told: dict[str, Any] = {"state": "S", "gpu": False, "text": frames.partition("\t")[0]}
        told |= {"frames": frames} if frames else {}
        world.job_sign(node, "stack.stuck", rank, source="stacks", raw=f"rank {rank}: {frames}", attrs=told | attrs)


def test_asked_once_answered_and_the_rank_is_named(quick: World) -> None:
    ranks = Ranks(quick)
    ranks.run(15)
    assert StackRequest.objects.count() == 0 and told(quick, "gpu1") == []
    ranks.run(7)
    request = StackRequest.objects.get()
    assert Incident.objects.count() == 0, "it is only suspected yet"
    (first,) = told(quick, "gpu1")
    assert first.body == {"id": str(request.pk), "ranks": [0, 1]}
    assert told(quick, "gpu2")[0].body["ranks"] == [2, 3] and told(quick, "gpu3") == []
    answer(quick, "gpu1", [0], ALL_REDUCE)
    assert told(quick, "gpu1")[0].body["ranks"] == [1], "said until all have answered"
    answer(quick, "gpu1", [1], ALL_REDUCE)
    answer(quick, "gpu2", [3], ALL_REDUCE)
    answer(quick, "gpu2", [2], LOADER)
    assert told(quick, "gpu1") == told(quick, "gpu2") == []
    ranks.run(20)
    incident = quick.incident()
    assert (incident.cause, incident.budget, incident.ranks, incident.suspects) == ("hang", "infrastructure", [2], [])
    assert "loads data" in incident.reason
    lines = set(incident.evidence.filter(code="stack.stuck").values_list("rank", "stance", "origin"))
    assert lines == {(2, "accuses", "job"), *((rank, "context", "job") for rank in (0, 1, 3))}
    assert NodeHold.objects.count() == 0 and Exclusion.objects.count() == 0
    assert quick.slurm_job().restarts == 1 and StackRequest.objects.count() == 1


def test_storage_is_named_and_no_node_is_touched(quick: World) -> None:
    ranks = Ranks(quick)
    ranks.run(22)
    nfs = {"state": "D", "wchan": "nfs_wait_bit_killable"}
    answer(quick, "gpu1", [0, 1], ALL_REDUCE)
    answer(quick, "gpu2", [2, 3], "", **nfs)
    ranks.run(20)
    incident = quick.incident()
    assert (incident.cause, incident.suspects, incident.ranks) == ("data_or_storage", [], [2, 3])
    assert quick.effects("drain", "down", "exclude") == [] and NodeHold.objects.count() == 0


def test_without_an_answer_the_stall_is_what_it_was(quick: World) -> None:
    ranks = Ranks(quick)
    ranks.run(40)
    assert (quick.incident().cause, quick.incident().ranks) == ("hang", [])


def test_a_request_that_nobody_answers_is_forgotten(quick: World) -> None:
    quick.policy = replace(quick.policy, stall=replace(QUICK, settle_s=1000.0))
    ranks = Ranks(quick)
    ranks.run(22)
    assert told(quick, "gpu1")
    ranks.run(STACKS_VALID_S)
    assert told(quick, "gpu1") == [] and StackRequest.objects.count() == 1


def test_a_stall_that_passes_opens_nothing_and_the_next_one_is_asked_about_again(quick: World) -> None:
    quick.policy = replace(quick.policy, stall=replace(QUICK, settle_s=10.0))
    ranks = Ranks(quick)
    ranks.run(24)
    answer(quick, "gpu1", [0, 1], ALL_REDUCE)
    answer(quick, "gpu2", [2], LOADER)
    answer(quick, "gpu2", [3], ALL_REDUCE)
    ranks.run(5, moving=True)
    ranks.run(24)
    assert list(StackRequest.objects.values_list("number", flat=True)) == [1, 2]
    assert told(quick, "gpu1"), "the earlier answers are not this stall's"
    ranks.run(15)
    assert (quick.incident().cause, quick.incident().ranks) == ("hang", []), "nor do they name anybody now"


class KilledError(BaseException):
    """The process ends here: nothing of it runs any more."""


@pytest.mark.parametrize("after", [False, True], ids=["before it asked", "after it asked"])
def test_a_sweep_that_is_killed_loses_nothing_and_asks_once(
    quick: World, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    quick.policy = replace(quick.policy, stall=replace(QUICK, settle_s=10.0))
    ranks = Ranks(quick)
    ask = sweeping.stack_requests.ask

    def killed(*given: Any) -> None:
        if after:
            ask(*given)
        raise KilledError

    ranks.run(19)
    with monkeypatch.context() as patched:
        patched.setattr(sweeping.stack_requests, "ask", killed)
        for _ in range(3):
            with pytest.raises(KilledError):
                ranks.run(1)
    assert StackRequest.objects.count() == (1 if after else 0)
    ranks.run(1)
    assert StackRequest.objects.count() == 1 and len(told(quick, "gpu1")) == 1
    ranks.run(20)
    assert quick.incident().cause == "hang" and StackRequest.objects.count() == 1


def test_two_sweeps_of_one_moment_make_one_row(quick: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process wrote its row between this one's look and its own row."""
    from controller.ledger import stack_requests

    ranks = Ranks(quick)
    ranks.run(19)
    real = stack_requests.wanted

    def raced(found: Any, asked: Any) -> Any:
        attempt = Attempt.objects.get()
        StackRequest.objects.get_or_create(attempt=attempt, number=1, defaults={"asked_at": aware(quick.now)})
        return real(found, asked)

    with monkeypatch.context() as patched:
        patched.setattr(stack_requests, "wanted", raced)
        ranks.run(3)
    assert StackRequest.objects.count() == 1


def test_a_superseded_attempt_is_asked_nothing(quick: World) -> None:
    ranks = Ranks(quick)
    ranks.run(22)
    attempt = Attempt.objects.get()
    orders = for_agent(quick.job(), attempt, "gpu1", attempt.generation + 1, quick.now)
    assert [order.kind for order in orders] == ["superseded"]
    assert Sign.objects.count() == 0
