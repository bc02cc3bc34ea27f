"""A quiet world: one training job on two of four nodes, all well at NOW. Tests state only their difference from it."""

from dataclasses import replace
from typing import Any

from controller.decision.attempt_facts import AgentFact, AttemptFact, RankExit
from controller.decision.facts import ClusterFacts, IncidentFact, NodeFact, ProbeFact, SlurmJobFact, SubjectFacts
from controller.decision.policy import Policy

NOW = 1_796_000_000.0
NODES = ("gpu1", "gpu2", "gpu3", "gpu4")
POLICY = Policy(mode="act")


def agent(node: str, silent_s: float = 0.5, **changes: Any) -> AgentFact:
    return AgentFact(node=node, received_at=NOW - silent_s, state=changes.pop("state", "running"), **changes)


def attempt(**changes: Any) -> AttemptFact:
    quiet = AttemptFact(
        generation=1,
        state="running",
        slurm_job_id="7",
        restart_count=0,
        nodes=("gpu1", "gpu2"),
        agents=(agent("gpu1", leader=True), agent("gpu2")),
        step=100,
        start_step=0,
        world_size=4,
        first_step_seen=True,
        first_new_step_seen=True,
    )
    return replace(quiet, **changes)


def slurm_job(**changes: Any) -> SlurmJobFact:
    quiet = SlurmJobFact(job_id="7", base="RUNNING", nodes=("gpu1", "gpu2"), partitions=("train",), num_nodes=2)
    return replace(quiet, **changes)


def subject(**changes: Any) -> SubjectFacts:
    quiet = SubjectFacts(
        run_id="tj-000000000001",
        state="training",
        enrolled=True,
        attempt=attempt(),
        slurm=slurm_job(),
        view_at=NOW - 0.5,
        nodes={name: NodeFact(name, "MIXED" if name in ("gpu1", "gpu2") else "IDLE") for name in NODES},
        witnesses=("gpu1",),
        controls=("gpu1", "gpu3"),
    )
    return replace(quiet, **changes)


def cluster(**changes: Any) -> ClusterFacts:
    quiet = ClusterFacts(
        nodes_total=4,
        nodes_out=frozenset(),
        drains_last_hour=0,
        requeues_last_minute=0,
        view_at=NOW - 0.5,
        mode="act",
    )
    return replace(quiet, **changes)


def probe(vantage: str, node: str, outcome: str, age_s: float = 0.5) -> ProbeFact:
    return ProbeFact(vantage, node, outcome, NOW - age_s)


def gpu2_lost(**changes: Any) -> SubjectFacts:
    """gpu2 silent for 5 s, silent to the controller and to gpu1, while gpu1 answers the controller."""
    lost: dict[str, Any] = {
        "attempt": attempt(agents=(agent("gpu1", leader=True), agent("gpu2", 5.0))),
        "probes": (
            probe("controller", "gpu2", "timeout", 1.0),
            probe("controller", "gpu1", "open", 1.0),
            probe("gpu1", "gpu2", "timeout", 0.4),
        ),
    }
    return subject(**(lost | changes))


def rank_exit(rank: int = 2, node: str = "gpu2", **changes: Any) -> RankExit:
    return replace(RankExit(rank, node, exit_code=None, signal=9, at=NOW - 5.0), **changes)


def incident(**changes: Any) -> IncidentFact:
    quiet = IncidentFact(
        incident_id=1,
        state="acting",
        cause="node_lost",
        generation=1,
        restarts=0,
        suspects=("gpu2",),
    )
    return replace(quiet, **changes)
