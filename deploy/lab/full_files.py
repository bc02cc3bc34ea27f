"""What the full lab adds to Slurm's configuration: accounting, preemption, more partitions, an epilog."""

from __future__ import annotations

import shutil
import socket

from deploy.lab.state import State

EPILOG_SECONDS = 5
# Marks the epilog's wait, and nothing else, for those who cannot wait for it.
EPILOG_MARK = "RELUME_LAB_EPILOG"
# Killed in its wait it still succeeds: an epilog that fails would drain the node.
EPILOG = "#!/bin/sh\n{mark}={lab} sleep {seconds} || :\n"

# Slurm wants gang scheduling named for the whole cluster; which of the two happens to a job is its partition's matter.
TRAIN = " PriorityTier=1 PreemptMode=REQUEUE"
PARTITIONS = """\
PartitionName=gang Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=SUSPEND OverSubscribe=FORCE:2
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF OverSubscribe=FORCE:1
PartitionName=hidden Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE Hidden=YES
"""
# slurmdbd keeps its own list of who may see what, of fewer kinds of things.
PRIVATE_IN_ACCOUNTING = ("accounts", "events", "jobs", "reservations", "usage", "users")


def slurm_conf_lines(state: State) -> str:
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={state.management_host}
AccountingStoragePort={state.slurmdbd_port}
AccountingStoragePass={state.dir}/munge/socket
AccountingStorageEnforce=associations
AccountingStorageTRES=gres/gpu
PreemptType=preempt/partition_prio
PreemptMode=SUSPEND,GANG
SchedulerTimeSlice=5
Epilog={state.dir}/epilog.sh
{PARTITIONS}"""


def slurmdbd_conf(state: State) -> str:
    d, host = state.dir, socket.gethostname().split(".")[0]
    private = [word for word in state.settings.get("PrivateData", "").split(",") if word in PRIVATE_IN_ACCOUNTING]
    return f"""\
AuthType=auth/munge
AuthInfo=socket={d}/munge/socket
DbdHost={host}
DbdAddr={state.management_host}
DbdPort={state.slurmdbd_port}
SlurmUser={state.users["controller"]}
LogFile={d}/log/slurmdbd.log
PidFile={d}/slurmctld/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={state.users["controller"]}
StorageLoc=slurm_acct_db
{f"PrivateData={','.join(private)}" if private else ""}
"""


def write(state: State) -> None:
    """The users must exist, and the folders that slurm_files makes."""
    epilog = state.path / "epilog.sh"
    epilog.write_text(EPILOG.format(mark=EPILOG_MARK, lab=state.id, seconds=EPILOG_SECONDS))
    epilog.chmod(0o755)
    write_slurmdbd_conf(state)
    log = state.path / "log" / "slurmdbd.log"
    log.touch(mode=0o644)
    shutil.chown(log, state.users["controller"])


def write_slurmdbd_conf(state: State) -> None:
    """slurmdbd wants it to be its own user's, and nobody else's to read."""
    new = state.path / ".slurmdbd.conf.new"
    new.write_text(slurmdbd_conf(state))
    new.chmod(0o600)
    shutil.chown(new, state.users["controller"])
    new.replace(state.path / "slurmdbd.conf")
