"""`scontrol -o show nodes|jobs` read as text: the cheapest reading, and one that knows when it is not sure.

A job's name and comment are its owner's free text, line breaks included: they can imitate attributes, and even whole
records. Nothing is guessed. The attributes that matter lie between two fixed anchors, the chain
`UserId=name(uid) GroupId=… MCS_label=` after the name and `Command=` before the rest; a record in which an anchor is
missing or appears twice is reported as doubtful, and its caller reads the same thing in a surer form. A forged record
that imitates a whole line is found by comparing the ids with a list that holds nothing but ids (`JobsRead.disputed`).

Node fields are set by administrators; only OS, Reason, Comment and Extra hold blanks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta, tzinfo
from functools import partial

from controller.slurm import durations, reasons, states
from controller.slurm.building import job_id, moment, names, number, present, tres_per_node, words
from controller.slurm.records import plain_fields, reading, split
from controller.slurm.views import JobView, NodeView

_JOB_START = re.compile(r"^(?=JobId=\d+ )", re.MULTILINE)
_JOB_HEAD = re.compile(
    r"JobId=(?P<raw>\d+)"
    r"(?: ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\S+)(?: ArrayTaskThrottle=\d+)?)?"
    r"(?: HetJobId=(?P<het>\d+) HetJobOffset=(?P<offset>\d+))?"
    r" JobName=(?P<name>.*)",
    re.DOTALL,
)
_OWNER = re.compile(r" UserId=(?P<user>\S+)\((?P<uid>\d+)\) GroupId=(?=\S+ MCS_label=)")
_HET_SET = re.compile(r" HetJobIdSet=[\d,+-]+$")
_JOB_TAIL_KEYS = (
    "Command", "SubmitLine", "WorkDir", "Comment", "AdminComment", "SystemComment", "Extra", "StdErr", "StdIn",
    "StdOut", "Switches", "BurstBuffer", "BurstBufferState", "Power", "NtasksPerTRES", "CpusPerTres", "MemPerTres",
    "TresBind",
    "TresFreq", "TresPerJob", "TresPerNode", "TresPerSocket", "TresPerTask", "MailUser", "MailType", "ClusterFeatures",
    "Container", "ContainerId", "SegmentSize",
)  # fmt: skip
_JOB_TAIL = re.compile(rf"\s({'|'.join(_JOB_TAIL_KEYS)})=")
# What may come after each free text of the tail (and first of all): any other key in it is text.
_AFTER_COMMENT = frozenset({"Comment", "AdminComment", "SystemComment", "Extra", "StdErr", "Power", "TresPerNode"})
_FOLLOWERS = {
    "": frozenset({"Command"}),
    "Command": frozenset({"SubmitLine", "WorkDir"}),
    "SubmitLine": frozenset({"WorkDir"}),
    **dict.fromkeys(("Comment", "AdminComment", "SystemComment", "Extra"), _AFTER_COMMENT),
}

_NODE_START = re.compile(r"^(?=NodeName=\S)", re.MULTILINE)
_NODE_OS = re.compile(r" OS=(.*?) +(?=RealMemory=)", re.DOTALL)
_NODE_FREE = re.compile(r"\s(?:Reason|Comment|Extra)=")
_NODE_TAIL = re.compile(r"\s(Reason|Comment|Extra|InstanceId|InstanceType|ReservationName)=")
_REASON_INDENT = " " * 8  # where a line break was
_REASON_STAMP = re.compile(
    r" ?\[(?P<user>[^\s\[\]@]+)@(?P<at>\d{9,}|\d{4}-\d\d-\d\dT[\d:]+|Unknown)\](?=$| {8}|\s[A-Z][A-Za-z]+=)"
)
_NO_VALUE = "4294967294"  # Slurm's NO_VAL, printed as if it were a number


@dataclass(frozen=True, slots=True)
class JobsRead:
    """Jobs whose record is beyond doubt, in Slurm's order, and the numbers of those whose record is not."""

    jobs: tuple[JobView, ...]
    doubtful: frozenset[int]

    def disputed(self, listed: Iterable[int]) -> frozenset[int]:
        """Numbers that cannot all be true: doubtful, there twice, or not in a list that holds nothing but ids."""
        counts = Counter(job.raw_id for job in self.jobs)
        twice = {raw_id for raw_id, count in counts.items() if count > 1}
        return self.doubtful | twice | (counts.keys() - set(listed))


def parse_jobs(text: str, zone: tzinfo | None = None) -> JobsRead:
    """SlurmUnreadable when `text` is neither records nor Slurm's "No jobs in the system"."""
    jobs: list[JobView] = []
    doubtful: set[int] = set()
    for record in split(text, _JOB_START, "No jobs in the system"):
        fields = _job_fields(record)
        if fields is None:
            doubtful.add(number(record.partition("=")[2]))
            continue
        with reading(record):
            jobs.append(_job_view(fields, zone))
    return JobsRead(tuple(jobs), frozenset(doubtful))


def parse_nodes(text: str, zone: tzinfo | None = None, *, default_port: int = 0) -> dict[str, NodeView]:
    """By name, in Slurm's order. SlurmUnreadable when `text` is not node records.

    Slurm leaves a slurmd's port out where it is the configured SlurmdPort: `default_port`.
    """
    views: dict[str, NodeView] = {}
    for record in split(text, _NODE_START, "No nodes in the system"):
        with reading(record):
            view = _node_view(_node_fields(record), zone, default_port)
        views[view.name] = view
    return views


def _job_fields(record: str) -> dict[str, str] | None:
    """The attributes of one record, or None when an anchor is missing or there twice."""
    owners = list(_OWNER.finditer(record))
    tail = _job_tail(record, owners[0].start()) if len(owners) == 1 else None
    if tail is None:
        return None
    owner, (tail_start, fields) = owners[0], tail
    head = _JOB_HEAD.fullmatch(record[: owner.start()])
    if head is None:
        return None
    said = head.groupdict()
    if said["het"]:
        said["name"] = _HET_SET.sub("", said["name"])
    middle = plain_fields(record[owner.end() : tail_start])
    return {**middle, **fields, **owner.groupdict(), **{key: text for key, text in said.items() if text is not None}}


def _job_tail(record: str, start: int) -> tuple[int, dict[str, str]] | None:
    """Where `Command=` begins and what follows it; None when an attribute of the tail comes twice."""
    accepted: list[re.Match[str]] = []
    seen: set[str] = set()
    for found in _JOB_TAIL.finditer(record, start):
        key = found.group(1)
        if key in seen:
            return None
        may_follow = _FOLLOWERS.get(accepted[-1].group(1) if accepted else "")
        if may_follow is None or key in may_follow:
            accepted.append(found)
            seen.add(key)
    if not accepted:
        return None
    ends = [match.start() for match in accepted[1:]] + [len(record)]
    texts = {match.group(1): record[match.end() : end].strip() for match, end in zip(accepted, ends, strict=True)}
    return accepted[0].start(), texts


def _taken(known: dict[str, str], key: str) -> str | None:
    return known.pop(key, None)


def _optional_number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _job_view(known: dict[str, str], zone: tzinfo | None) -> JobView:
    """Takes what it names out of `known`; what is left goes to `extra`."""
    take, get = known.pop, partial(_taken, known)
    task_text = present(get("task"))
    task_text = "" if task_text == _NO_VALUE else task_text
    task = int(task_text) if task_text.isdecimal() else None
    tasks = "" if task is not None else task_text
    array, het = _optional_number(get("array")), _optional_number(get("het"))
    het_offset = _optional_number(get("offset"))
    raw = int(take("raw"))
    code, _, sent = take("ExitCode").partition(":")
    reason = present(take("Reason"))
    run_time = durations.parse(get("RunTime"))
    return JobView(
        job_id=job_id(raw, array, task, tasks),
        raw_id=raw,
        state=states.parse_job(take("JobState")),
        name=take("name"),
        user=take("user"),
        uid=int(take("uid")),
        account=present(get("Account")),
        qos=present(get("QOS")),
        array_job_id=array,
        array_task_id=task,
        array_tasks=tasks,
        het_job_id=het,
        het_job_offset=het_offset,
        partition=words(take("Partition")),
        reason=reason,
        dependency=present(get("Dependency")),
        nodes=names(take("NodeList")),
        batch_host=present(get("BatchHost")),
        excluded_nodes=names(take("ExcNodeList")),
        required_nodes=names(take("ReqNodeList")),
        features=present(get("Features")),
        reservation=present(get("Reservation")),
        batch=take("BatchFlag") != "0",
        requeue=take("Requeue") == "1",
        restarts=int(take("Restarts")),
        priority=number(take("Priority")),
        hold_kind=reasons.hold_kind(reason),
        submit_time=moment(take("SubmitTime"), zone),
        eligible_time=moment(get("EligibleTime"), zone),
        start_time=moment(get("StartTime"), zone),
        end_time=moment(get("EndTime"), zone),
        run_time=run_time if isinstance(run_time, timedelta) else None,
        time_limit=durations.parse(get("TimeLimit")),
        exit_code=int(code),
        exit_signal=number(sent),
        comment=present(get("Comment")),
        command=present(get("Command")),
        workdir=present(get("WorkDir")),
        stdout=present(get("StdOut")),
        stderr=present(get("StdErr")),
        num_nodes=number(get("NumNodes")),
        num_tasks=number(get("NumTasks")),
        num_cpus=number(get("NumCPUs")),
        tres=present(get("AllocTRES")) or present(known.get("ReqTRES")) or present(get("TRES")),
        tres_per_node=tres_per_node(get("TresPerNode")),
        extra=known,
    )


def _node_fields(record: str) -> dict[str, str]:
    os_found = _NODE_OS.search(record)
    os_text = os_found.group(1) if os_found else ""
    rest = record[: os_found.start()] + " " + record[os_found.end() :] if os_found else record
    tail = _NODE_FREE.search(rest)
    head = rest[: tail.start()] if tail else rest
    free = _node_tail(rest[tail.start() :]) if tail else {}
    return {"OS": os_text, **plain_fields(head), **free}


def _node_tail(text: str) -> dict[str, str]:
    """Reason with its stamp, Comment, Extra and the like; each counts once, where it comes first."""
    fields: dict[str, str] = {}
    position = 0
    while position < len(text):
        found = _NODE_TAIL.match(text, position)
        assert found is not None  # `text` begins with a key, and every value ends where one begins
        following = _NODE_TAIL.search(text, found.end())
        if found.group(1) == "Reason":
            stamp = _REASON_STAMP.search(text, found.end())
            if stamp:
                fields |= {"reason_user": stamp["user"], "reason_at": stamp["at"]}
                following = _NODE_TAIL.search(text, stamp.end())
                end = following.start() if following else len(text)
                lines = [text[found.end() : stamp.start()], *text[stamp.end() : end].split(_REASON_INDENT)[1:]]
                fields["Reason"] = "\n".join(line.strip() for line in lines)
                position = end
                continue
        end = following.start() if following else len(text)
        fields.setdefault(found.group(1), text[found.end() : end].strip())
        position = end
    return fields


def _node_view(known: dict[str, str], zone: tzinfo | None, default_port: int) -> NodeView:
    take, get = known.pop, partial(_taken, known)
    return NodeView(
        name=take("NodeName"),
        state=states.parse_node(take("State")),
        reason=get("Reason") or "",
        reason_user=get("reason_user") or "",
        reason_at=moment(get("reason_at"), zone),
        address=present(get("NodeAddr")),
        hostname=present(get("NodeHostName")),
        port=number(get("Port"), default_port),
        boot_time=moment(get("BootTime"), zone),
        slurmd_start_time=moment(get("SlurmdStartTime"), zone),
        last_busy_time=moment(get("LastBusyTime"), zone),
        partitions=words(get("Partitions")),
        features=words(get("AvailableFeatures")),
        active_features=words(get("ActiveFeatures")),
        gres=present(get("Gres")),
        cpus=number(get("CPUTot")),
        cpus_alloc=number(get("CPUAlloc")),
        memory_mb=number(get("RealMemory")),
        memory_alloc_mb=number(get("AllocMem")),
        tres=present(get("CfgTRES")),
        tres_alloc=present(get("AllocTRES")),
        version=present(get("Version")),
        os=present(get("OS")),
        comment=get("Comment") or "",
        extra=known,
    )
