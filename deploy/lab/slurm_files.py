"""The lab's Slurm configuration: an ordinary site's defaults (what the full lab adds is in full_files.py).

Nothing here makes recovery faster than Slurm's own defaults would (SlurmdTimeout, KillWait, the scheduler's
intervals, MinJobAge): what the lab shows is not a tuned Slurm.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from pathlib import Path

from deploy.lab import full_files
from deploy.lab.state import State

GPUS = 8
CPUS = 16
MEMORY_MB = 64000


def slurm_conf(state: State) -> str:
    """The file's text; `state.settings` replace lines of the same name, or come on top."""
    text = _plain_conf(state) + (full_files.slurm_conf_lines(state) if state.full else "")
    changed = {name.lower() for name in state.settings}
    kept = [line for line in text.splitlines() if line.partition("=")[0].lower() not in changed]
    return "\n".join([*kept, *(f"{name}={value}" for name, value in state.settings.items())]) + "\n"


def _plain_conf(state: State) -> str:
    d, host = state.dir, socket.gethostname().split(".")[0]
    return f"""ClusterName={state.cluster}
SlurmctldHost={host}({state.management_host})
SlurmctldPort={state.slurmctld_port}
AuthType=auth/munge
AuthInfo=socket={munge_socket(state)}
SlurmUser={state.users["controller"]}
SlurmdUser=root
StateSaveLocation={d}/slurmctld
SlurmdSpoolDir={d}/spool/%n
SlurmctldPidFile={d}/slurmctld/slurmctld.pid
SlurmdPidFile={d}/spool/slurmd-%n.pid
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd-%n.log
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
GresTypes=gpu
SlurmdParameters=config_overrides
PropagateResourceLimitsExcept=MEMLOCK,NOFILE
ReturnToService=2
SlurmdTimeout=300
KillWait={state.kill_wait}
{_node_lines(state)}
PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP{full_files.TRAIN if state.full else ""}
"""


def munge_socket(state: State) -> str:
    return f"{state.dir}/munge/socket"


def write(state: State) -> None:
    """Everything Slurm reads, and the folders it writes. The users must exist."""
    for name in ("log", "spool", "dev", "kernel", "boot"):
        (state.path / name).mkdir()
    for node in state.nodes:
        Path(node.kernel_log).touch(mode=0o600)  # as on a host with dmesg_restrict
    for name, role in (("munge", "munge"), ("slurmctld", "controller")):
        _owned_folder(state, name, role, 0o755 if name == "munge" else 0o700)
    for number in range(GPUS):
        os.mknod(state.path / "dev" / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    write_slurm_conf(state)
    _write(state, "cgroup.conf", f"CgroupPlugin={_cgroup_plugin(state)}\n")
    _write(state, "gres.conf", _gres_conf(state))
    _write(state, "hosts", _hosts(state))
    log = state.path / "log" / "slurmctld.log"
    log.touch(mode=0o644)
    shutil.chown(log, state.users["controller"])
    key = state.path / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    shutil.chown(key, state.users["munge"])
    if state.full:
        full_files.write(state)


def write_slurm_conf(state: State) -> None:
    """At once or not at all: a daemon may be reading it."""
    _write(state, ".slurm.conf.new", slurm_conf(state))
    (state.path / ".slurm.conf.new").replace(state.slurm_conf)


def _node_lines(state: State) -> str:
    host = "" if state.network else f"NodeHostname={socket.gethostname().split('.')[0]} "
    shape = f"CPUs={CPUS} RealMemory={MEMORY_MB} Gres=gpu:h100:{GPUS} Feature=h100,ib State=UNKNOWN"
    return "\n".join(
        f"NodeName={n.name} {host}NodeAddr={n.management} Port={n.slurmd_port} {shape}" for n in state.nodes
    )


def _hosts(state: State) -> str:
    """What the nodes have for /etc/hosts: on a real cluster every node's name resolves everywhere."""
    host = socket.gethostname().split(".")[0]
    lines = ["127.0.0.1 localhost", f"{state.management_host} {host} controller"]
    lines += [f"{n.management} {n.name}" for n in state.nodes]
    lines += [f"{n.training} {n.name}-train" for n in state.nodes]
    return "\n".join(lines) + "\n"


def _cgroup_plugin(state: State) -> str:
    """No cgroup is used either way; the older version cannot be told so."""
    year = int(state.slurm_version.split(".")[0])
    return "disabled" if year >= 24 else "cgroup/v1"


def _gres_conf(state: State) -> str:
    files = f"File={state.dir}/dev/gpu[0-{GPUS - 1}]"
    return f"AutoDetect=off\nNodeName=gpu[1-{len(state.nodes)}] Name=gpu Type=h100 {files}\n"


def _owned_folder(state: State, name: str, role: str, mode: int) -> None:
    folder = state.path / name
    folder.mkdir(mode=mode)
    shutil.chown(folder, state.users[role])


def _write(state: State, name: str, text: str) -> None:
    (state.path / name).write_text(text)
    (state.path / name).chmod(0o644)
