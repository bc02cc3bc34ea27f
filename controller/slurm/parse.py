"""`scontrol -o show nodes|jobs` read as text, by a reader that knows when it is not sure.

A job's name and comment are its owner's free text, line breaks included: they can imitate attributes, and even whole
records. Nothing is guessed. The attributes that matter lie between two fixed anchors, the chain
`UserId=name(uid) GroupId=… MCS_label=` after the name and `Command=` before the rest; a record in which an anchor is
missing or appears twice is reported as doubtful, and its caller reads the same thing in a surer form (`columns`). So it
does where one job was asked for and more than one record came.

Node fields are set by administrators; only OS, Reason, Comment and Extra hold blanks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import tzinfo

from controller.slurm.building import number
from controller.slurm.records import plain_fields, reading, split
from controller.slurm.text_views import job_view, node_view
from controller.slurm.views import JobView, NodeView

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
    "Container", "ContainerId", "SegmentSize", "OOMKillStep",
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

_AFTER_OWNERS_WORD = {
    "Account": {"QOS"},
    "QOS": {"WCKey", "JobState"},
    "WCKey": {"JobState"},
    "Licenses": {"LicensesAlloc", "Network"},
    "Network": {""},
}

_NODE_OS = re.compile(r" OS=(.*?) +(?=RealMemory=)", re.DOTALL)
_NODE_FREE = re.compile(r"\s(?:Reason|Comment|Extra)=")
_NODE_TAIL = re.compile(r"\s(Reason|Comment|Extra|InstanceId|InstanceType|ReservationName)=")
_REASON_INDENT = " " * 8  # where a line break was
_REASON_STAMP = re.compile(
    r" ?\[(?P<user>[^\s\[\]@]+)@(?P<at>\d{9,}|\d{4}-\d\d-\d\dT[\d:]+|Unknown)\](?=$| {8}|\s[A-Z][A-Za-z]+=)"
)


@dataclass(frozen=True, slots=True)
class JobsRead:
    """Jobs whose record looks right, in Slurm's order, and the numbers of those whose record does not."""

    jobs: tuple[JobView, ...]
    doubtful: frozenset[int]

    @property
    def sure(self) -> JobView | None:
        """The job, where the text is one record and right: a name can make more records of one, never fewer."""
        return self.jobs[0] if len(self.jobs) == 1 and not self.doubtful else None


def parse_jobs(text: str, zone: tzinfo | None = None) -> JobsRead:
    """SlurmUnreadable when `text` is neither records nor Slurm's "No jobs in the system"."""
    jobs: list[JobView] = []
    doubtful: set[int] = set()
    for record in split(text, "JobId", "No jobs in the system"):
        fields = _job_fields(record)
        if fields is None:
            doubtful.add(number(record.partition("=")[2]))
            continue
        with reading(record):
            jobs.append(job_view(fields, zone))
    return JobsRead(tuple(jobs), frozenset(doubtful))


def parse_nodes(text: str, zone: tzinfo | None = None, *, default_port: int = 0) -> dict[str, NodeView]:
    """By name, in Slurm's order. SlurmUnreadable when `text` is not node records."""
    views = [parse_node(record, zone, default_port=default_port) for record in node_records(text)]
    return {view.name: view for view in views}


def node_records(text: str) -> list[str]:
    return split(text, "NodeName", "No nodes in the system")


def parse_node(record: str, zone: tzinfo | None = None, *, default_port: int = 0) -> NodeView:
    """Slurm leaves a slurmd's port out where it is the configured SlurmdPort: `default_port`."""
    with reading(record):
        return node_view(_node_fields(record), zone, default_port)


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
    middle = _job_middle(record[owner.end() : tail_start])
    if middle is None:
        return None
    return {**middle, **fields, **owner.groupdict(), **{key: text for key, text in said.items() if text is not None}}


def _job_middle(text: str) -> dict[str, str] | None:
    """What lies between the anchors; None when an attribute comes twice, or when something else than in Slurm's own
    order follows one of the few that their owner writes: `--network="x JobState=FAILED"` is taken by Slurm as it is."""
    keys = [word.partition("=")[0] for word in text.split() if "=" in word]
    if len(set(keys)) < len(keys):
        return None
    for key, following in zip(keys, [*keys[1:], ""], strict=True):
        if following not in _AFTER_OWNERS_WORD.get(key, {following}):
            return None
    return plain_fields(text)


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
