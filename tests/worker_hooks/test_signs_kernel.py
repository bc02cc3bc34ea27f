# ruff: noqa: E501 (log lines stay whole)
"""Kernel lines of several kernels and drivers, each with the one sign that it is, and lines that are none."""

import pytest

from worker_hooks.signs.codes import known, layer_of
from worker_hooks.signs.log import read_lines
from worker_hooks.signs.sign import Sign

pytestmark = pytest.mark.pure

XID_SPELLINGS = [
    "[Thu Mar  5 02:11:40 2026] NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "[ 2210.417733] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.",
    "[ 2210.417733][ T1234] NVRM: Xid (PCI:0000:9B:00.0): 79, GPU has fallen off the bus.",
    "Mar 05 02:11:40 gn31 kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid=1698812, name=pt_main_thread, GPU has fallen off",
    "2026-03-05T02:11:40,308145+01:00 NVRM: Xid (0000:9b:00): 79, GPU has fallen off the bus.",
    "2026-03-05T02:11:40.308145+01:00 gn31 kernel: [ 2210.41] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.",
    "kern  :err   : 2026-03-05T02:11:40,308145+00:00 NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.",
    "4,17,812345,-;NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.",
    "<4>[ 2210.417733] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.",
    "\x1b[31mNVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\x1b[0m",
]


def one(*lines: str, kind: str = "kernel") -> Sign:
    signs = read_lines(kind, lines, node="gn31")
    assert len(signs) == 1, signs
    return signs[0]


@pytest.mark.parametrize("line", XID_SPELLINGS)
def test_every_spelling_of_one_xid(line: str) -> None:
    sign = one(line)
    assert (sign.code, sign.node, sign.attrs["number"], sign.attrs["pci"]) == ("xid.79", "gn31", 79, "0000:9b:00")
    assert str(sign.attrs["text"]).startswith("GPU has fallen off")
    assert sign.layer == "kernel"
    assert sign.source == "kernel"


def test_the_same_xid_in_a_job_log() -> None:
    sign = one("[rank3]: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.", kind="job")
    assert (sign.code, sign.source, sign.rank) == ("xid.79", "job_log", 3)


@pytest.mark.parametrize(
    ("rest", "attrs"),
    [
        ("(PCI:0000:9b:00): 43, pid=2924364, name=pt_main_thread, Ch 00000008", {"process": "pt_main_thread", "pid": 2924364}),
        ("(PCI:0000:9b:00): 43, pid=1, name=ray::Worker, Ch 00000008", {"process": "ray::Worker", "text": "Ch 00000008"}),
        ("(PCI:0000:9b:00): 43, pid=1, name=my job, x, Ch 00000008", {"process": "my job, x", "text": "Ch 00000008"}),
        ("(PCI:0000:9b:00): 999, pid=1, name=x, something new", {"process": "x", "text": "something new"}),
        ("(PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).", {"gpu_instance": "GPU-I 5"}),
        ("(PCI:0000:01:00 GPU-I:05 GPU-CI:02): 13, pid=1, name=a, Graphics", {"gpu_instance": "GPU-I 5, GPU-CI 2"}),
        ("(PCI:0000:9b:00): 13, Graphics SM Warp Exception on (GPC 1, TPC 0, SM 0): Out", {"location": "GPC 1, TPC 0, SM 0"}),
        ("(PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x04)", {"fatal": False, "unit": "RLW_RXPIPE", "link": 13}),
        ("(PCI:0018:01:00): 149, pid=1, name=a::b, NETIR_LINK_EVT Fatal XC0 i0 Link 00", {"fatal": True, "link": 0}),
        ("(PCI:0000:02:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", {"recovery": "reboot"}),
        ("(PCI:0000:02:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", {"recovery": "reset"}),
        ("(PCI:0000:02:00): 154, GPU recovery action changed from 0x2 (x) to 0x0 (None)", {"recovery": "none"}),
    ],
)  # fmt: skip
def test_details_of_an_xid(rest: str, attrs: dict[str, object]) -> None:
    sign = one(f"[ 12.5] NVRM: Xid {rest}")
    assert {name: sign.attrs[name] for name in attrs} == attrs


def test_a_lost_gpu_without_a_number_over_several_interleaved_lines() -> None:
    signs = read_lines(
        "kernel",
        [
            "[ 2210.417733] NVRM: The NVIDIA GPU 0000:b3:00.0",
            "               NVRM: (PCI ID: 10de:2339) installed in this system has",
            "[ 2210.417800] systemd[1]: Started Session 12 of user ada.",
            "               NVRM: fallen off the bus and is not responding to commands.",
        ],
        node="gn14",
    )
    assert [(sign.code, sign.attrs["pci"], sign.attrs["inferred"]) for sign in signs] == [
        ("xid.79", "0000:b3:00", True)
    ]


def test_the_words_behind_a_number_are_the_same_event() -> None:
    one(
        "NVRM: Xid (PCI:0000:01:00): 79, pid=1122, GPU has fallen off the bus.",
        "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
    )


def test_an_uuid_told_before_is_kept() -> None:
    uuid = "GPU-509665ad-b600-ac93-3616-d754b23d636d"
    sign = one(f"NVRM: GPU at PCI:0000:9b:00: {uuid}", "NVRM: Xid (PCI:0000:9b:00): 48, pid=1, name=a, DBE")
    assert sign.attrs["gpu_uuid"] == uuid


@pytest.mark.parametrize("fatal", ["Fatal", "Non-fatal"])
def test_an_sxid_and_its_data_are_one_event(fatal: str) -> None:
    sign = one(
        f"[120031.552310] nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, {fatal}, Link 30 LTSSM Fault Up",
        "[120031.552325] nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Data {0x50610002, 0x10100030}",
    )
    assert (sign.code, sign.count) == ("sxid.20034", 1)
    assert (sign.attrs["fatal"], sign.attrs["link"], sign.attrs["pci"]) == (fatal == "Fatal", 30, "0000:a9:00")


@pytest.mark.parametrize(
    ("line", "code", "attrs"),
    [
        ("NVRM: GPU 0000:b3:00.0: RmInitAdapter failed! (0x26:0x56:1474)", "gpu.init_failed", {"pci": "0000:b3:00"}),
        ("NVRM: RmInitAdapter failed! (0x27:0x38:1193)", "gpu.init_failed", {}),
        ("nvidia: probe of 0000:01:00.0 failed with error -1", "gpu.init_failed", {"pci": "0000:01:00"}),
        ("mlx5_core 0000:17:00.0 ens1f0np0: Link down", "nic.link_down", {"device": "ens1f0np0"}),
        ("mlx5_core 0000:17:00.0 ens1f0np0: Link up", "nic.link_up", {"device": "ens1f0np0"}),
        ("bnxt_en 0000:5e:00.0 eth0: NIC Link is Down", "nic.link_down", {"device": "eth0"}),
        ("ice 0000:17:00.0 ens785f0: NIC Link is up 100 Gbps Full Duplex", "nic.link_up", {"device": "ens785f0"}),
        ("igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Down", "nic.link_down", {"device": "eno1"}),
        ("bond0: (slave ens1f0): link status definitely down, disabling slave", "nic.link_down", {"device": "ens1f0"}),
        ("mlx5_core 0000:9b:00.0: Port module event: module 0, Cable unplugged", "nic.link_down", {"port": 0}),
        ("mlx5_core 0000:9b:00.0: Port module event[error]: module 1, Cable error, Bus stuck", "nic.error", {"port": 1}),
        ("mlx5_core 0000:9b:00.0: poll_health:738:(pid 0): device's health compromised - reached miss count", "nic.error",
         {"device": "0000:9b:00.0"}),
        ("mlx5_core 0000:08:00.0: mlx5_cmd_check:777:(pid 102063): SET_FLOW(0x936) op_mod(0x0) failed, status bad parameter(0x3),"
         " syndrome (0x8708c3)", "nic.error", {"device": "0000:08:00.0"}),
        ("mlx5_core 0000:08:00.0: wait_func:964:(pid 1): QUERY_HCA_CAP(0x100) timeout. Will cause a leak of a command resource",
         "nic.error", {"device": "0000:08:00.0"}),
        ("NETDEV WATCHDOG: ens1 (mlx5_core): transmit queue 3 timed out", "nic.error", {"device": "ens1"}),
        ("efa 0000:00:1d.0: Failed to process command CREATE_QP (opcode 1) comp_status 7 err -22", "nic.error", {"device": "0000:00:1d.0"}),
        ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0", "pcie.fatal", {"pci": "0000:01:00"}),
        ("pcieport 0000:00:01.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:01:00.0", "pcie.nonfatal",
         {"pci": "0000:01:00"}),
        ("nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
         "pcie.nonfatal", {"pci": "0000:01:00"}),
        ("pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=00e0(Receiver ID)", "pcie.corrected",
         {"pci": "0000:00:1c"}),
        ("pcieport 0000:00:1c.0: AER: Corrected error received: id=00e0", "pcie.corrected", {"pci": "0000:00:1c"}),
        ("pcieport 0000:00:03.1: DPC: containment event, status:0x1f01 source:0x0000", "pcie.fatal", {"pci": "0000:00:03"}),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)", "memory.uncorrected", {}),
        ("EDAC MC1: 3 CE memory scrubbing error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0", "memory.corrected", {}),
        ("Memory failure: 0x1a2b3c: recovery action for dirty LRU page: Recovered", "memory.uncorrected", {}),
        ("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00004000010092", "cpu.machine_check", {"fatal": False}),
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000100134", "cpu.machine_check", {"fatal": True}),
        ("CPU3: Core temperature above threshold, cpu clock throttled (total events = 5)", "kernel.thermal", {"cpu": 3}),
        ("watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python:12345]", "kernel.soft_lockup",
         {"cpu": 12, "seconds": 22, "process": "python", "pid": 12345}),
        ("NMI watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [kworker/u256:3:12345]", "kernel.soft_lockup",
         {"process": "kworker/u256:3"}),
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 5", "kernel.hard_lockup", {"cpu": 5}),
        ("INFO: task kworker/u256:3:1234 blocked for more than 120 seconds.", "kernel.hung_task",
         {"process": "kworker/u256:3", "pid": 1234, "seconds": 120}),
        ("rcu: INFO: rcu_sched self-detected stall on CPU", "kernel.rcu_stall", {}),
        ("Kernel panic - not syncing: Fatal exception in interrupt", "kernel.panic", {}),
        ("BUG: kernel NULL pointer dereference, address: 0000000000000008", "kernel.panic", {}),
        ("nvme nvme0: I/O 123 QID 5 timeout, aborting", "disk.error", {"device": "nvme0"}),
        ("nvme nvme1: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10", "disk.error", {"device": "nvme1"}),
        ("blk_update_request: I/O error, dev sda, sector 1234 op 0x0:(READ) flags 0x0", "disk.error", {"device": "sda"}),
        ("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm x: reading directory", "disk.error", {"device": "sda1"}),
        ("EXT4-fs (sda1): Remounting filesystem read-only", "disk.readonly", {"device": "sda1"}),
        ("XFS (nvme0n1p1): metadata I/O error in \"xfs_trans\" at daddr 0x1", "disk.error", {"device": "nvme0n1p1"}),
        ("nfs: server fs1 not responding, still trying", "storage.not_responding", {"server": "fs1", "kind": "nfs"}),
        ("nfs: server fs1 OK", "storage.recovered", {"server": "fs1", "kind": "nfs"}),
        ("Lustre: lfs-OST0001-osc-ffff8: Connection to lfs-OST0001 (at 10.0.0.1@o2ib) was lost; in progress operations using this "
         "service will wait", "storage.not_responding", {"server": "lfs-OST0001", "kind": "lustre"}),
        ("Lustre: lfs-OST0001-osc-ffff8: Connection restored to lfs-OST0001 (at 10.0.0.1@o2ib)", "storage.recovered",
         {"server": "lfs-OST0001"}),
    ],
)  # fmt: skip
def test_the_rest_of_the_host(line: str, code: str, attrs: dict[str, object]) -> None:
    for prefix in ("", "[  812.417733] ", "2026-03-05T02:11:40,308145+01:00 ", "Mar  5 02:11:40 gn31 kernel: "):
        sign = one(prefix + line)
        assert sign.code == code, prefix
        assert known(sign.code)
        assert sign.layer == layer_of(code)
        assert {name: sign.attrs.get(name) for name in attrs} == attrs


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07",
        "docker0: port 1(veth12ab) entered disabled state",
        "veth12ab: Link is down",
        "mlx5_core 0000:9b:00.0: Port module event: module 0, Cable plugged",
        "python[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libtorch.so",
        "traps: python[123] general protection fault ip:7f sp:7f error:0 in libc.so.6",
        "oom_reaper: reaped process 345646 (vector), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "Xid without any number",
    ],
)
def test_what_is_no_sign(line: str) -> None:
    kill = "Out of memory: Killed process 1 (a) total-vm:1kB"  # the reaper speaks of a kill that was told
    assert [sign.attrs.get("process") for sign in read_lines("kernel", [line, kill])] == ["a"]


OOM_V2 = [
    "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job_123,mems_allowed=0-1,oom_memcg=/system.slice/slurmstepd.scope/"
    "job_123,task_memcg=/system.slice/slurmstepd.scope/job_123/step_0/user/task_0,task=python,pid=4711,uid=1000",
    "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB, UID:1000 pgtables:1kB",
    "oom_reaper: reaped process 4711 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
]  # fmt: skip
OOM_V1 = [
    "Task in /slurm/uid_1000/job_123/step_0/task_0 killed as a result of limit of /slurm/uid_1000/job_123",
    "Memory cgroup out of memory: Kill process 4711 (python) score 1974 or sacrifice child",
    "Killed process 4711 (python), UID 1000, total-vm:9kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB",
]


@pytest.mark.parametrize("lines", [OOM_V2, OOM_V1, OOM_V2[1:], OOM_V2[1:2], OOM_V2[:2]])
def test_one_kill_of_a_slurm_job_however_much_is_left_of_it(lines: list[str]) -> None:
    sign = one(*lines)
    assert (sign.code, sign.count) == ("oom.kill", 1)
    told = {name: sign.attrs[name] for name in ("pid", "process", "constraint", "slurm_job")}
    assert told == {"pid": 4711, "process": "python", "constraint": "memcg", "slurm_job": "123"}


def test_the_hosts_own_memory() -> None:
    sign = one("Out of memory: Killed process 99 (my (odd) name) total-vm:1kB, anon-rss:1kB, UID:0")
    assert (sign.attrs["constraint"], sign.attrs["process"], sign.attrs["pid"]) == ("none", "my (odd) name", 99)


def test_a_reaped_process_whose_kill_was_lost() -> None:
    assert one(OOM_V2[3]).attrs["pid"] == 4711
