"""A runner with prepared answers, the command-line adapter on it, and one job record to forge with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

from controller.slurm.cli import CliSlurm
from controller.slurm.runner import Completed, Runner

NOW = datetime(2026, 11, 29, 15, tzinfo=UTC)

CONFIG = (
    "Configuration data as of 1795970000\nBOOT_TIME = 1795950000\nClusterName = lab\nNEXT_JOB_ID = 10\n"
    "PrivateData = none\nSLURM_VERSION = 22.05.8\nSlurmdPort = 6818\n"
)
NODE = (
    "NodeName=gpu1 Arch=x86_64 CPUAlloc=0 CPUTot=8 AvailableFeatures=h100 ActiveFeatures=h100 Gres=gpu:h100:8 "
    "NodeAddr=10.77.0.1 NodeHostName=gpu1 Port=6818 Version=22.05.8 OS=Linux 6.1 #1 SMP  RealMemory=4000 AllocMem=0 "
    "State=IDLE ThreadsPerCore=1 Partitions=train  BootTime=1795960000 SlurmdStartTime=1795960001 "
    "LastBusyTime=1795960002 CfgTRES=cpu=8 AllocTRES= \n"
)
PARTITION = (
    "PartitionName=train AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=NONE GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO Nodes=gpu[1-2] "
    "PriorityJobFactor=1 PriorityTier=1 PreemptMode=OFF State=UP TotalCPUs=16 TotalNodes=2 JobDefaults=(null)\n"
)
RESERVATION = (
    "ReservationName=relume-x StartTime=1795982127 EndTime=1795982427 Duration=00:05:00 Nodes=gpu[1-2] NodeCnt=2 "
    "CoreCnt=32 Features=(null) PartitionName=(null) Flags=IGNORE_JOBS,SPEC_NODES TRES=cpu=32 Users=ada Groups=(null) "
    "Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n"
)


def job_record(number: int = 7, *, name: str = "llama", comment: str = "", state: str = "RUNNING") -> str:
    """One line of `scontrol -o show jobs` of 22.05."""
    return (
        f"JobId={number} JobName={name} UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A Priority=10 Nice=0 "
        f"Account=(null) QOS=(null) JobState={state} Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 "
        "Reboot=0 ExitCode=0:0 RunTime=00:00:03 TimeLimit=1-00:00:00 TimeMin=N/A SubmitTime=1795963735 "
        "EligibleTime=1795963735 StartTime=1795963736 EndTime=1796050136 Partition=train AllocNode:Sid=x:1 "
        "ReqNodeList=(null) ExcNodeList=(null) NodeList=gpu[1-2] BatchHost=gpu1 NumNodes=2 NumCPUs=2 NumTasks=2 "
        "TRES=cpu=2,node=2 Features=(null) Network=(null) Command=/home/ada/train.sh WorkDir=/home/ada "
        f"{f'Comment={comment} ' if comment else ''} StdErr=/home/ada/o StdIn=/dev/null StdOut=/home/ada/o Power= "
        "TresPerNode=gres:gpu:8 \n"
    )


QUIET_JOB = {
    "JobID": "7", "ArrayJobID": "7", "ArrayTaskID": "N/A", "HetJobID": "N/A", "HetJobOffset": "N/A", "State": "RUNNING",
    "UserID": "1000", "Partition": "train", "NodeList": "gpu[1-2]", "BatchHost": "gpu1", "ReqNodes": "",
    "BatchFlag": "1", "Requeue": "1", "RestartCnt": "0", "PriorityLong": "10", "SubmitTime": "1795963735",
    "EligibleTime": "1795963735", "StartTime": "1795963736", "EndTime": "1796050136", "TimeLimit": "1-00:00:00",
    "exit_code": "0", "NumNodes": "2", "NumTasks": "2", "NumCPUs": "2", "tres-alloc": "cpu=2,node=2",
    "tres-per-node": "gres:gpu:8", "UserName": "ada", "Name": "llama", "Comment": "(null)", "Account": "(null)",
    "QOS": "(null)", "Reason": "None", "Dependency": "(null)", "Feature": "(null)", "Reservation": "(null)",
    "Command": "/home/ada/train.sh", "WorkDir": "/home/ada", "STDOUT": "/home/ada/o", "STDERR": "/home/ada/o",
    "BurstBuffer": "", "Container": "", "Origin": "NA", "ExcNodes": "",
}  # fmt: skip
Answer = Completed | OSError | Callable[[Sequence[str]], Completed]


def queue(*jobs: Mapping[str, str]) -> Callable[[Sequence[str]], Completed]:
    """squeue, printing the columns it is asked for; each job says only its difference from the quiet one."""

    def answer(argv: Sequence[str]) -> Completed:
        rows = [{column: "JOBID" if column == "JobID" else column.upper() for column in QUIET_JOB}]
        rows += [QUIET_JOB | job for job in jobs]
        if (short := argv[-1].removeprefix("--format=")) != argv[-1]:
            end = short.removeprefix("%A").removesuffix("%x")
            return said("".join(f"{row['JobID']}{end}{row['ExcNodes']}\n" for row in rows))
        wanted = [column.partition(":") for column in argv[-1].removeprefix("--Format=").split(",")]
        return said("".join("".join(row[name] + end for name, _, end in wanted) + "\n" for row in rows))

    return answer


@dataclass
class ScriptedRunner:
    """Answers by the first prepared key that occurs in the command; keeps what was asked."""

    answers: Mapping[str, Answer]
    asked: list[list[str]] = field(default_factory=list)

    def run(self, argv: Sequence[str], timeout: float) -> Completed:
        assert timeout > 0
        self.asked.append(list(argv))
        answer = next(answer for key, answer in self.answers.items() if key in " ".join(argv))
        if isinstance(answer, OSError):
            raise answer
        return answer if isinstance(answer, Completed) else answer(argv)


def slurm(answers: Mapping[str, Answer]) -> tuple[CliSlurm, ScriptedRunner]:
    runner = ScriptedRunner(answers)
    return CliSlurm(clock=lambda: NOW, reader=cast(Runner, runner)), runner


def said(out: str = "", err: str = "", rc: int | None = 0, **more: bool) -> Completed:
    return Completed(rc=rc, out=out, err=err, duration=0.01, **more)


def whole() -> dict[str, Answer]:
    """The answers of a quiet cluster of one node and one job."""
    return {
        "show config": said(CONFIG),
        "show partitions": said(PARTITION),
        "show reservations": said(RESERVATION),
        "show nodes": said(NODE),
        "--Format=": queue({}),
        "--format=%A": queue({}),
    }
