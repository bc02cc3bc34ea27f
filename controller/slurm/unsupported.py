"""What Relume does not act upon, refused by name: federation, cloud and dynamic nodes, burst buffers, containers. Pure.

Each refusal is one line, `unsupported: <name>: <why; what to do>`. A job with any of them is watched, never acted upon:
the rules by which Relume holds, requeues and verifies were not tried there, and some of them are wrong there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.slurm.building import present
from controller.slurm.views import JobView, NodeView

FEDERATION = "federation"
CLOUD_NODES = "cloud nodes"
DYNAMIC_NODES = "dynamic nodes"
BURST_BUFFER = "burst buffer"
CONTAINER = "container launcher"

WHY = {
    FEDERATION: (
        "the job may start on another cluster, whose nodes Relume does not see; "
        "train on a cluster outside the federation"
    ),
    CLOUD_NODES: (
        "another machine stands behind the name after each power-up, so neither a hold nor a silence says anything "
        "about the hardware; train on nodes that are not State=CLOUD"
    ),
    DYNAMIC_NODES: (
        "such a node can be deleted and come back as another machine under any name; train on nodes of slurm.conf"
    ),
    BURST_BUFFER: (
        "a requeue would stage data out and in again by the plugin's rules, which Relume does not follow; "
        "submit without burst buffer directives"
    ),
    CONTAINER: (
        "Slurm starts the ranks in a container of its own, where Relume's agent cannot look after them; "
        "start the container inside: relume run -- apptainer exec IMAGE python train.py"
    ),
}
# Job ids of a federation carry the number of their cluster above these bits, whatever else is shown.
_LOCAL_ID_BITS = 26
# Options of Slurm itself and of its container plugins; both may follow sbatch in the submit line.
_CONTAINER_OPTIONS = ("--container=", "--container-image=", "--container-name=")
_CONTAINER_WORDS = frozenset(option.removesuffix("=") for option in _CONTAINER_OPTIONS)


def of_job(job: JobView, nodes: Mapping[str, NodeView]) -> tuple[str, ...]:
    """Refusals for one job and the nodes it holds (`nodes`: by name, of the same view). Empty: nothing stands
    against it."""
    names = [
        FEDERATION if _federated(job) else "",
        *_of_nodes(nodes[name] for name in job.nodes if name in nodes),
        BURST_BUFFER if present(job.extra.get("BurstBuffer")) else "",
        CONTAINER if _in_container(job) else "",
    ]
    return tuple(refusal(name) for name in dict.fromkeys(names) if name)


def of_cluster(config: Mapping[str, str], nodes: Iterable[NodeView], federation: str = "") -> tuple[str, ...]:
    """What of this cluster is not acted upon, as far as its configuration tells. `federation`: what
    `scontrol show federation` printed, which is nothing outside one. Containers show in jobs only."""
    names = [
        FEDERATION if federation.strip() else "",
        *_of_nodes(nodes),
        BURST_BUFFER if present(config.get("BurstBufferType")) else "",
    ]
    return tuple(refusal(name) for name in dict.fromkeys(names) if name)


def refusal(name: str) -> str:
    return f"unsupported: {name}: {WHY[name]}"


def _of_nodes(nodes: Iterable[NodeView]) -> list[str]:
    flags = {flag for node in nodes for flag in node.state.flags}
    dynamic = any(flag.startswith("DYNAMIC") for flag in flags)
    return [CLOUD_NODES if "CLOUD" in flags else "", DYNAMIC_NODES if dynamic else ""]


def _federated(job: JobView) -> bool:
    return job.raw_id >> _LOCAL_ID_BITS > 0 or bool(present(job.extra.get("FedOrigin")))


def _in_container(job: JobView) -> bool:
    words = job.extra.get("SubmitLine", "").split()
    asked = any(word.startswith(_CONTAINER_OPTIONS) or word in _CONTAINER_WORDS for word in words)
    return asked or bool(present(job.extra.get("Container")))
