"""Where this agent stands: which job, which node of how many. Read from Slurm's environment (docs/formats.md 2, 3).

Pure: the environment comes in as a mapping. Outside Slurm it describes a job of one node, so that `relume run` also
works on a workstation.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from worker_hooks.protocol.identity import split_run_id
from worker_hooks.protocol.messages import JobRef


class PlacementError(ValueError):
    """The environment contradicts itself, or asks for what an agent cannot do. The text says what to change."""


@dataclass(frozen=True)
class Placement:
    """One agent's place in its job step. `index` counts nodes from 0; the agent with index 0 leads."""

    job: JobRef
    node: str
    index: int
    node_count: int
    step_id: str
    under_slurm: bool
    het_size: int = 1

    @property
    def leads(self) -> bool:
        return self.index == 0


def read_placement(environ: Mapping[str, str], hostname: str, user: str, pid: int) -> Placement:
    """Raises PlacementError if several agents share one node."""
    if environ.get("SLURM_LOCALID", "0") != "0":
        raise PlacementError("more than one task on this node: start one agent per node (srun --ntasks-per-node=1)")
    under_slurm = "SLURM_JOB_ID" in environ
    node_count = _number(environ, "SLURM_STEP_NUM_NODES", _number(environ, "SLURM_NNODES", 1))
    index = _number(environ, "SLURM_NODEID", 0)
    if index >= node_count:
        raise PlacementError(f"SLURM_NODEID is {index}, but the step has {node_count} node(s)")
    node = environ.get("SLURMD_NODENAME") or hostname
    job = JobRef(
        cluster=environ.get("SLURM_CLUSTER_NAME", ""),
        slurm_job_id=own_job_id(environ) or f"local-{hostname}-{pid}",
        restart_count=_number(environ, "SLURM_RESTART_COUNT", 0),
        user=user,
        nodes=environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or node,
    )
    step_id, het_size = environ.get("SLURM_STEP_ID", "0"), _number(environ, "SLURM_HET_SIZE", 1)
    return Placement(job, node, index, node_count, step_id, under_slurm, het_size)


def own_job_id(environ: Mapping[str, str]) -> str | None:
    """This job as Slurm spells it: `36_3` for a task of an array (its SLURM_JOB_ID is another number, and 36 alone is
    every task), the leader's number for a het job. None outside Slurm.

    A job that a task submits inherits the task's SLURM_ARRAY_* (tried): what `relume sbatch` submitted as no array
    knows by its run id that they are not its own.
    """
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if not (array and task) or _is_no_task(environ.get("RELUME_RUN_ID", "")):
        return environ.get("SLURM_JOB_ID")
    return f"{array}_{task}"


def _is_no_task(run_id: str) -> bool:
    try:
        return split_run_id(run_id)[1] is None
    except ValueError:
        return False


def default_ranks(environ: Mapping[str, str]) -> int:
    """GPUs of this node's share of the job, else 1."""
    on_node = environ.get("SLURM_GPUS_ON_NODE", "")
    if on_node.isdigit() and int(on_node) > 0:
        return int(on_node)
    visible = [item for item in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if item.strip()]
    return len(visible) or 1


def thread_count(environ: Mapping[str, str], ranks: int, cpus: int) -> str:
    """`OMP_NUM_THREADS` of the ranks: the user's own wins. Part of the complete state: bits depend on it."""
    if "OMP_NUM_THREADS" in environ:
        return environ["OMP_NUM_THREADS"]
    share = environ.get("SLURM_CPUS_PER_TASK") or environ.get("SLURM_CPUS_ON_NODE", "")
    return str(max(1, (int(share) if share.isdigit() else cpus) // ranks))


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name)
    if text is None or text == "":
        return default
    if not text.isdigit():
        raise PlacementError(f"{name}={text[:40]!r} is not a number")
    return int(text)
