"""Every code that a reader may give, with its layer and the attributes that it carries where the line has them.

A code is `family.name`; `xid.*` and `sxid.*` end with the driver's number. Attributes are optional unless a reader
could not have made the sign without them. `peer` is always as the line spells it (an address or a host name).
"""

CODES: dict[str, tuple[str, str]] = {
    # --- kernel log: GPU driver -----------------------------------------------------------------------------------
    "xid.*": ("kernel", "number, pci (0000:9b:00), pid, process, text, fatal (bool, 144-150 only), unit, link, "
              "location (GPC 1, TPC 0, SM 0), recovery (154: what the driver asks for), gpu_instance (MIG), gpu_uuid, "
              "inferred (bool: said without a number)"),
    "sxid.*": ("kernel", "number, pci, fatal (bool), link, text"),
    "gpu.init_failed": ("kernel", "pci, text"),
    "gpu.driver_error": ("kernel", "pci, text"),
    # --- kernel log: the rest of the host -------------------------------------------------------------------------
    "nic.link_down": ("network", "device, port"),
    "nic.link_up": ("network", "device, port"),
    "nic.error": ("network", "device, text"),
    "pcie.fatal": ("kernel", "pci, text"),
    "pcie.nonfatal": ("kernel", "pci, text"),
    "pcie.corrected": ("kernel", "pci, text"),
    "memory.uncorrected": ("kernel", "text"),
    "memory.corrected": ("kernel", "text"),
    "cpu.machine_check": ("kernel", "text, fatal (bool)"),
    "oom.kill": ("kernel", "pid, process, uid, constraint (memcg, none, ...), cgroup, slurm_job"),
    "kernel.soft_lockup": ("kernel", "cpu, seconds, process, pid"),
    "kernel.hard_lockup": ("kernel", "cpu"),
    "kernel.hung_task": ("kernel", "process, pid, seconds"),
    "kernel.rcu_stall": ("kernel", "text"),
    "kernel.panic": ("kernel", "text"),
    "kernel.thermal": ("kernel", "cpu"),
    "disk.error": ("kernel", "device, text"),
    "disk.readonly": ("kernel", "device"),
    "storage.not_responding": ("kernel", "server, kind (nfs, lustre, gpfs, beegfs)"),
    "storage.recovered": ("kernel", "server, kind"),
    # --- counters of the node sensor ------------------------------------------------------------------------------
    "gpu.missing": ("gpu", "expected, found"),
    "gpu.ecc_uncorrected": ("gpu", "pci, gpu_uuid, volatile, aggregate"),
    "gpu.remap_pending": ("gpu", "pci, gpu_uuid"),
    "gpu.remap_failed": ("gpu", "pci, gpu_uuid"),
    "gpu.recovery_action": ("gpu", "pci, gpu_uuid, action (none, reset, reboot, drain_p2p, drain_reset)"),
    "gpu.throttled": ("gpu", "pci, gpu_uuid, reasons"),
    "gpu.unreadable": ("gpu", "text"),
    "ib.link_down": ("network", "device, port, state"),
    "ib.link_downed": ("network", "device, port, count"),
    "ib.errors": ("network", "device, port, counter, per_s"),
    "ib.slow": ("network", "device, port, rate_gbps, expected_gbps"),
    "pcie.degraded": ("gpu", "pci, width, max_width, speed, max_speed"),
    "link.carrier_lost": ("network", "device"),
    "node.memory_pressure": ("node", "available_fraction, stalled_fraction"),
    "sensor.reader_failed": ("node", "reader, text"),
    # --- communication libraries ----------------------------------------------------------------------------------
    "nccl.ib_completion": ("library", "status, vendor_error, opcode, peer, host, device, remote_gid, local_gid"),
    "nccl.ib_qp_timeout": ("library", "errno, device, local_gid, remote_gid, host"),
    "nccl.ib_async_event": ("library", "device, event, host"),
    "nccl.socket_error": ("library", "peer, errno, text, host"),
    "nccl.peer_closed": ("library", "peer, host"),
    "nccl.remote_error": ("library", "text"),
    "nccl.system_error": ("library", "text"),
    "nccl.internal_error": ("library", "text"),
    "nccl.invalid_usage": ("library", "text"),
    "nccl.cuda_failure": ("library", "number, text, host, local_rank"),
    "nccl.watchdog_timeout": ("library", "sequence, op, numel_in, numel_out, timeout_ms, ran_ms, group, group_name"),
    "nccl.watchdog_status": ("library", "work, enqueued, completed, group"),
    "nccl.watchdog_stuck": ("library", "seconds, group"),
    "nccl.watchdog_ended": ("library", "text, group"),
    "gloo.peer_lost": ("library", "peer, kind (reset, closed, refused, unreachable)"),
    "gloo.timeout": ("library", "peer, timeout_ms, missing (ranks that did not come to a monitored barrier: 1,3)"),
    "store.lost": ("library", "text"),
    "store.timeout": ("library", "text"),
    "rendezvous.failed": ("library", "text"),
    "collective.mismatch": ("library", "kind, text (ranks in the sign's rank)"),
    "collective.state": ("library", "group, group_name, size, members (0-12:4), enqueued, started, completed, "
                         "p2p_enqueued, waiting (unfinished operations); of the oldest of these: op, state, sequence, "
                         "sizes, dtypes, p2p (bool), peer_rank (of one rank in one group, from a dump)"),
    "flight_recorder.refused": ("library", "text"),
    # --- processes ------------------------------------------------------------------------------------------------
    "cuda.ecc": ("process", "text"),
    "cuda.illegal_access": ("process", "text"),
    "cuda.device_assert": ("process", "text"),
    "cuda.assertion": ("process", "text (the kernel's own `Assertion ... failed` line)"),
    "cuda.launch_failed": ("process", "text"),
    "cuda.misaligned": ("process", "text"),
    "cuda.out_of_memory": ("process", "gpu, text"),
    "cuda.no_device": ("process", "number, text"),
    "cuda.unavailable": ("process", "number, text (busy, unknown error, initialization error)"),
    "cuda.driver": ("process", "text (driver too old, driver/library version mismatch)"),
    "cuda.nvlink": ("process", "text"),
    "cuda.error": ("process", "number, text (any other)"),
    "python.exception": ("process", "type, text, errno, module, repeats (code of the failure that it tells again)"),
    "python.import_error": ("process", "type, text"),
    "connection.lost": ("process", "errno (a connection that has no name: mostly to a process that ended before)"),
    "storage.stale": ("process", "errno, path"),
    "storage.io_error": ("process", "errno, path"),
    "storage.no_space": ("process", "errno, path"),
    "storage.quota": ("process", "errno, path"),
    "storage.readonly": ("process", "errno, path"),
    "storage.unreachable": ("process", "errno, path, text (time-outs and closed connections of remote storage)"),
    "data.corrupt": ("process", "text (a file that cannot be decoded)"),
    "checkpoint.unreadable": ("process", "text"),
    "host.out_of_memory": ("process", "text (bad_alloc, MemoryError, cannot allocate memory)"),
    "shm.exhausted": ("process", "text"),
    "loader.killed": ("process", "signal, pid"),
    "port.in_use": ("process", "port"),
    "limit.open_files": ("process", "text"),
    "process.exit": ("process", "exit_code, signal, local_rank, pid, torn_down (bool), host"),
    "torchrun.failure": ("process", "local_rank, exit_code, signal, pid, host, error_file, message, first (bool: its "
                         "table calls it the root cause), table (number of the table)"),
    "torchrun.closing": ("process", "pid, signal (Sending process N closing signal)"),
    "signal.received": ("process", "signal, ignored (bool)"),
    "loss.not_finite": ("process", "step, name, healed (bool: numbers came after it)"),
    "loss.spike": ("process", "step, value, healed (bool)"),
    "trainer.finished": ("process", "text"),
    "stack.stuck": ("process", "text (innermost frames of the main thread, else the kernel's state), function, file, "
                    "line, frames (a line each: function, tab, file; innermost first), state (of /proc/PID/stat), "
                    "wchan, syscall (number), kernel_stack, gpu (bool: it has a GPU open), pid, request (the id), "
                    "why (there are no frames)"),
    # --- Slurm's texts and states ---------------------------------------------------------------------------------
    "slurm.cancelled": ("slurm", "kind (JOB, STEP), id, host (the printer), truncated (bool: a reason may be cut off)"),
    "slurm.time_limit": ("slurm", "kind, id, host"),
    "slurm.node_failure": ("slurm", "kind, id, host (the printer, not the culprit)"),
    "slurm.preempted": ("slurm", "kind, id, host"),
    "slurm.requeued": ("slurm", "kind, id, host"),
    "slurm.cancelled_by_node": ("slurm", "kind, id, host (ended because a task failed)"),
    "slurm.oom": ("slurm", "events, id"),
    "slurm.step_unkillable": ("slurm", "id, host"),
    "slurm.launch_failed": ("slurm", "id, host, text"),
    "slurm.node_lost": ("slurm", "host (the node that failed, by srun's word; the sign's node is it too)"),
    "slurm.epilog_failed": ("slurm", "host, text"),
    "slurm.command_failed": ("slurm", "text (the job's own command is not there, or cannot be run)"),
    "slurm.task_exit": ("slurm", "host, tasks (0,2-3), exit_code, signal, core_dumped (bool)"),
    "slurm.connection": ("slurm", "text (srun or slurmstepd could not reach somebody)"),
    "slurm.aborted": ("slurm", "text (srun gave up the step)"),
    "slurm.node_state": ("slurm", "state (base+FLAGS as Slurm spells them), reason, reason_user"),
    "slurm.job_state": ("slurm", "state, reason, restarts, exit_code"),
    # --- progress -------------------------------------------------------------------------------------------------
    "progress.step": ("progress", "step, loss, seconds"),
    "progress.bar": ("progress", "percent, text, remaining_s"),
    "progress.stalled": ("progress", "phase, age_s, limit_s, step"),
    "progress.silent": ("progress", "age_s, limit_s"),
    "progress.straggler": ("progress", "role, slowdown"),
    "progress.slow": ("progress", "slowdown, since_step"),
    # --- what was known before ------------------------------------------------------------------------------------
    "history.error": ("node", "job, error, of (the code that the error would have)"),
}  # fmt: skip


def layer_of(code: str) -> str:
    """The layer of a known code. KeyError for a code that no reader may give."""
    return CODES[code if code in CODES else code.split(".", 1)[0] + ".*"][0]


def known(code: str) -> bool:
    return code in CODES or (code.split(".", 1)[0] + ".*") in CODES
