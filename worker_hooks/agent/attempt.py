"""Begins an attempt: who this run is, which generation it is, and what the ranks find in their environment."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_hooks.agent import network
from worker_hooks.agent.hostnames import expand
from worker_hooks.agent.identity import Identity, IdentityError, load_identity
from worker_hooks.agent.placement import Placement, PlacementError
from worker_hooks.protocol.durable import encode_json, replace_file
from worker_hooks.protocol.generations import newest, newest_of_job
from worker_hooks.protocol.identity import is_run_id, new_run_id, own_run_id
from worker_hooks.protocol.manifest import Generation
from worker_hooks.protocol.messages import MessageError
from worker_hooks.protocol.minting import mint

POLL_S = 0.1
FRESH_S = 600.0
MINT_TRIES = 5


class AttemptError(RuntimeError):
    """The attempt could not begin; the text says why."""


class ToldToEnd(RuntimeError):
    """The agent got SIGTERM before its attempt began."""


@dataclass(frozen=True)
class RankPlan:
    """The local ranks in the world."""

    local: int
    first: int
    world: int


def plan_ranks(local: int, placement: Placement) -> RankPlan:
    return RankPlan(local, placement.index * local, local * placement.node_count)


# --- who --------------------------------------------------------------------------------------------------------


def find_identity(environ: Mapping[str, str], say: Callable[[str], None]) -> Identity | None:
    """The identity that `relume sbatch` gave this job; None (and why, in the log) if there is none to use."""
    path = environ.get("RELUME_IDENTITY")
    if not path:
        say(
            "not submitted by `relume sbatch`: nothing is sent to a controller, records stay in the spool; "
            "submit with `relume sbatch` to register the run"
        )
        return None
    try:
        return load_identity(Path(path))
    except IdentityError as error:
        say(f"{error}; nothing is sent to a controller, records stay in the spool")
        return None


def find_run_id(
    environ: Mapping[str, str], identity: Identity | None, root: Path, placement: Placement, wait: "Waiter"
) -> str:
    """The run id of identity or environment, else one that stays the same when Slurm requeues this job."""
    if identity is not None:
        found = identity.run_id_in(environ)
        if found is None:
            raise PlacementError(f"{identity.path} is an array's, but this is no task of one (SLURM_ARRAY_TASK_ID)")
        return found
    return own_run_id(environ) or _bare_run_id(root, placement, wait)


def _bare_run_id(root: Path, placement: Placement, wait: "Waiter") -> str:
    """Kept in a file named after the job. Slurm uses job ids again, so a job's first start takes a new run id."""
    path = root / "jobs" / f"{placement.job.cluster or 'slurm'}.{placement.job.slurm_job_id}.json"
    first_start = placement.job.restart_count == 0 and placement.step_id == "0"
    if placement.leads:
        return _lead_bare(path, first_start)
    since = time.time() - FRESH_S if first_start else 0.0
    found = wait(lambda: _read_run_id(path, since))
    if found is None:
        raise AttemptError(f"{path}: the leading agent did not write it in time")
    return str(found)


def _lead_bare(path: Path, first_start: bool) -> str:
    """A requeued job goes on with its own run or not at all: a file that cannot be read now names it all the same."""
    try:
        known = None if first_start else _read_run_id(path, 0.0)
        if known is None and not first_start and _is_there(path):
            raise AttemptError(f"{path} cannot be read: it names the run that this job goes on with")
        if known is None:
            known = new_run_id()
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, encode_json({"version": 1, "run_id": known, "created_at": time.time()}))
        return known
    except OSError as error:
        raise AttemptError(f"{path}: {error.strerror}") from error


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def _read_run_id(path: Path, since: float) -> str | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        fresh = is_run_id(data["run_id"]) and data["created_at"] >= since
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(data["run_id"]) if fresh else None


# --- which generation -------------------------------------------------------------------------------------------


@dataclass
class Waiter:
    """Asks again until there is an answer or the time is up. Raises ToldToEnd as soon as `pause` gives False."""

    limit_s: float
    pause: Callable[[float], bool]

    def __call__(self, ask: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + self.limit_s
        while (answer := ask()) is None and time.monotonic() < deadline:
            if not self.pause(POLL_S):
                raise ToldToEnd("told to end before the ranks were started")
        return answer


def job_key(placement: Placement) -> dict[str, Any]:
    """What tells this job step's generation from any other."""
    job = placement.job
    return {
        "cluster": job.cluster,
        "slurm_job_id": job.slurm_job_id,
        "restart_count": job.restart_count,
        "step_id": placement.step_id,
    }


def lead(run: Path, placement: Placement, plan: RankPlan, rendezvous: Mapping[str, Any], wait: Waiter) -> Generation:
    """Mint the generation; storage that fails for a moment is asked again. Raises AttemptError, PlacementError."""
    if placement.het_size > 1:
        _refuse_second_world(run, placement)
    problem: list[Exception] = []

    def attempt() -> Generation | None:
        try:
            return mint(
                run,
                node=placement.node,
                world_size=plan.world,
                now=time.time(),
                job=job_key(placement),
                nodes=expand(placement.job.nodes),
                rendezvous=rendezvous,
            )
        except (OSError, MessageError) as error:
            problem.append(error)
            return None

    made = Waiter(min(wait.limit_s, MINT_TRIES * 1.0), wait.pause)(attempt)
    if made is None:
        raise AttemptError(f"no generation could be minted in {run}: {problem[-1]}")
    return made  # type: ignore[no-any-return]


def _refuse_second_world(run: Path, placement: Placement) -> None:
    """A het job is one training job. A job step for each component would make two worlds of ranks under one run id,
    and the second would end the first as superseded: say what to write instead."""
    try:
        held = newest(run)
    except (OSError, MessageError):
        return  # what cannot be read is the minting's to complain about
    mine = job_key(placement)
    if held is None or held.job == mine or {**held.job, "step_id": placement.step_id} != mine:
        return
    if set(held.nodes) != set(expand(placement.job.nodes)):
        raise PlacementError(
            f"this het job's ranks run on {','.join(held.nodes)} already: a het job is one training job, start all "
            "of its ranks in one job step (srun --het-group=0,1 …)"
        )


def follow(run: Path, placement: Placement, plan: RankPlan, wait: Waiter) -> Generation:
    """Wait for the leading agent's generation of this very job step. Raises AttemptError."""

    def look() -> Generation | None:
        try:
            return newest_of_job(run, job_key(placement))
        except (OSError, MessageError):
            return None

    found: Generation | None = wait(look)
    if found is None:
        raise AttemptError(f"the leading agent minted no generation in {run} within {wait.limit_s:g} s")
    if found.world_size != plan.world:
        raise AttemptError(
            f"the leading agent expects {found.world_size} ranks, this node makes it {plan.world}: "
            "every node needs the same number of ranks"
        )
    return found


def choose_rendezvous(placement: Placement, training_address: str) -> dict[str, Any]:
    """Where rank 0 will listen: on this, the leading, node."""
    address = training_address if placement.node_count > 1 else "127.0.0.1"
    return {"address": address, "port": network.free_port(address)}


# --- what the ranks see -----------------------------------------------------------------------------------------


def rank_environment(
    environ: Mapping[str, str],
    placement: Placement,
    plan: RankPlan,
    generation: Generation,
    local_rank: int,
    extra: Mapping[str, str],
) -> dict[str, str]:
    """torchrun's names and Relume's, over what the job step has. The user's API token stays out."""
    return {
        **{name: value for name, value in environ.items() if name != "RELUME_API_TOKEN"},
        **extra,
        "RANK": str(plan.first + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(plan.world),
        "LOCAL_WORLD_SIZE": str(plan.local),
        "GROUP_RANK": str(placement.index),
        "MASTER_ADDR": str(generation.rendezvous["address"]),
        "MASTER_PORT": str(generation.rendezvous["port"]),
        "RELUME_RUN_ID": generation.run_id,
        "RELUME_GENERATION": str(generation.generation),
    }
