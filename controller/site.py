"""What sweep and executor are given: one cluster's Slurm, the policy, and the outside world as plain callables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.decision.policy import Policy
from controller.slurm.port import SlurmPort
from controller.slurm.reach import Outcome, Target

Probe = Callable[[Sequence[Target], float], list[Outcome]]


@dataclass(frozen=True)
class Site:
    """`owner` names this process in leases. `slurm_user` is who our writes are to Slurm. `cluster_name` empty means:
    what Slurm calls itself. `clock` gives Unix seconds; `sleep` is used for waits of at most two seconds."""

    port: SlurmPort
    policy: Policy
    clock: Callable[[], float]
    probe: Probe
    sleep: Callable[[float], None]
    owner: str
    slurm_user: str
    cluster_name: str = ""
