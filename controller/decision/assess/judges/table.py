"""The judges in the order in which they are asked: machines before programs, causes before what follows from them.

Of the definite ones (`CAUSES`) an older fault wins over a younger: see `merge`."""

from collections.abc import Callable

from controller.decision.assess.judges import (
    devices,
    fabric,
    hang,
    history,
    hosts,
    memory,
    numbers,
    peers,
    program,
    setup,
    slurm,
    storage,
)
from controller.decision.assess.opinion import Opinion
from controller.decision.assess.view import View

Judge = Callable[[View], Opinion | None]

# A machine's own fault: nothing excuses it, and every one of them counts.
MACHINES: tuple[Judge, ...] = (devices.device_fault, hosts.host_fault, storage.local_disk)
# Somebody or something ended the job on purpose.
ENDINGS: tuple[Judge, ...] = (slurm.told_to_end,)
CAUSES: tuple[Judge, ...] = (
    slurm.launch_failed,
    setup.unusable_gpus,
    program.assertion,
    memory.gpu_memory,
    setup.command,
    setup.port,
    setup.limits,
    storage.quota,
    storage.files,
    memory.host_memory,
    program.mismatch,
    hang.mismatched_calls,
    program.bad_address,
    storage.data,
    program.exception,
    slurm.unkillable,
    slurm.node_down,
    fabric.network,
)
# Where nothing of the above was found.
SOFT: tuple[Judge, ...] = (
    memory.killed,
    program.crashed,
    setup.slow_start,
    peers.lost_peer,
    program.ended_first,
    storage.ranks_wait,
    hang.hang,
    numbers.not_finite,
    program.ended_by_itself,
    setup.rendezvous,
    devices.harmless_device_signs,
    storage.host_waits,
    history.seen_before,
    numbers.spike,
    slurm.ended_by_somebody,
)
