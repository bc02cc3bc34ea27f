"""A world for each scenario, what happens in many of them, and whom it hit."""

import pytest

from controller.models import AgentReport, Attempt, Exclusion, Incident, NodeHold
from tests.scenarios.world import World

ECC = "CUDA error: uncorrectable ECC error encountered"
XID_48 = {"code": "xid.48", "raw": "NVRM: Xid (PCI:0000:9b:00): 48, DBE", "attrs": {"number": 48}}


@pytest.fixture
def world(db: None) -> World:
    return World()


def decided(world: World) -> None:
    """gpu2 is lost, and nothing has been done yet."""
    world.kill_host("gpu2")
    while not Incident.objects.exists():
        world.tick(actions=False)


def place_ranks(on_each: int = 2) -> None:
    """Ranks in the order of nodes, as the agents tell them."""
    quiet = {"state": "running", "phase": "training", "step": 100, "pid": 400, "exit_code": None, "signal": None}
    quiet |= {"progress_age_s": 0.1, "beat_age_s": 0.1, "pace": {}}
    reports = sorted(AgentReport.objects.all(), key=lambda report: int(report.node.removeprefix("gpu")))
    for index, report in enumerate(reports):
        report.ranks = [{**quiet, "rank": on_each * index + local} for local in range(on_each)]
        report.save(update_fields=["ranks"])


def die(world: World, *ranks: tuple[int, str], signal: int | None = 6, exit_code: int | None = None) -> None:
    """These ranks end by themselves, now."""
    how = {"exit_code": exit_code, "signal": signal, "at": world.now, "torn_down": False}
    attempt = Attempt.objects.order_by("-generation")[0]
    attempt.exits = [{"rank": rank, "node": node, **how} for rank, node in ranks]
    attempt.save(update_fields=["exits"])


def ecc_by_the_jobs_word(world: World) -> None:
    world.job_sign("gpu2", "cuda.ecc", 2, raw=ECC, attrs={"text": ECC})
    for rank, node in ((0, "gpu1"), (1, "gpu1"), (3, "gpu2")):
        world.job_sign(node, "nccl.remote_error", rank, layer="library")
    die(world, (2, "gpu2"))


def held() -> list[str]:
    return sorted(NodeHold.objects.values_list("node__name", flat=True))


def excluded() -> list[str]:
    return sorted(Exclusion.objects.values_list("node__name", flat=True))


def blamed_nobody(world: World) -> bool:
    return held() == excluded() == world.effects("drain", "down", "exclude") == []
