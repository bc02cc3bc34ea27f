"""All jobs in one `squeue`: the cheapest reading that is sure about free text.

A job's name, comment, account and paths are its owner's free text, line breaks included. Each of them ends with a mark
that is drawn anew for every call, so that no text written before the call can imitate the end of a field or of a
record. What Slurm itself writes is put before them, with a plain separator. A record of another shape, or a job that
is there twice, makes the whole answer unreadable: its caller reads the same thing in another form.

Left out is what differs at every reading (the run time): the same record is the same text, read once (see `memory`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.errors import SlurmUnreadable
from controller.slurm.building import exit_status, present
from controller.slurm.records import reading
from controller.slurm.text_views import job_view
from controller.slurm.views import JobView

_SQUEUE = ("squeue", "--all", "--local", "--states=all", "--sort=i")
_SEPARATOR = "\x1f"
_HEADING = "JOBID"  # over the first column: the sign that an answer without a job is an answer
# squeue's name of each column, and scontrol's name of the attribute.
_WRITTEN_BY_SLURM = {
    "JobID": "raw", "ArrayJobID": "array", "ArrayTaskID": "task", "HetJobID": "het", "HetJobOffset": "offset",
    "State": "JobState", "UserID": "uid", "Partition": "Partition", "NodeList": "NodeList", "BatchHost": "BatchHost",
    "ReqNodes": "ReqNodeList", "BatchFlag": "BatchFlag", "Requeue": "Requeue", "RestartCnt": "Restarts",
    "PriorityLong": "Priority", "SubmitTime": "SubmitTime", "EligibleTime": "EligibleTime", "StartTime": "StartTime",
    "EndTime": "EndTime", "TimeLimit": "TimeLimit", "exit_code": "ExitCode", "NumNodes": "NumNodes",
    "NumTasks": "NumTasks", "NumCPUs": "NumCPUs", "tres-alloc": "TRES", "tres-per-node": "TresPerNode",
}  # fmt: skip
_FREE_TEXT = {
    "UserName": "user", "Name": "name", "Comment": "Comment", "Account": "Account", "QOS": "QOS", "Reason": "Reason",
    "Dependency": "Dependency", "Feature": "Features", "Reservation": "Reservation", "Command": "Command",
    "WorkDir": "WorkDir", "STDOUT": "StdOut", "STDERR": "StdErr", "BurstBuffer": "BurstBuffer",
    "Container": "Container", "Origin": "FedOrigin",
}  # fmt: skip
_SAID_WHEN_THERE = ("BurstBuffer", "Container", "FedOrigin")  # as scontrol does: they go to `extra`
_EXCLUDED = "ExcNodes"
_OPTIONAL_NUMBERS = ("task", "het", "offset")  # "N/A" in a job that is no task, or no component

Record = tuple[str, ...]  # the part that Slurm wrote, each free text, and the excluded nodes


@dataclass(frozen=True, slots=True)
class Table:
    """One question. `drawn` must not be known to anybody before the call. `has_excluded`: this squeue has a column for
    the excluded nodes; others are asked with `exclusions_question`."""

    drawn: str
    has_excluded: bool

    @property
    def field_mark(self) -> str:
        return f"{_SEPARATOR}{self.drawn};"

    @property
    def record_mark(self) -> str:
        return f"{_SEPARATOR}{self.drawn}.\n"

    @property
    def marked(self) -> tuple[str, ...]:
        return (*_FREE_TEXT, _EXCLUDED) if self.has_excluded else tuple(_FREE_TEXT)

    def question(self, job: int | None = None) -> tuple[str, ...]:
        """For all jobs, or for those of one id."""
        ends = [_SEPARATOR] * (len(_WRITTEN_BY_SLURM) - 1) + [self.field_mark] * len(self.marked)
        ends.append(self.record_mark.removesuffix("\n"))  # squeue adds the line break
        wanted = zip((*_WRITTEN_BY_SLURM, *self.marked), ends, strict=True)
        return (*_SQUEUE, *_only(job), f"--Format={','.join(f'{column}:{end}' for column, end in wanted)}")

    def records(self, text: str, excluded: Mapping[str, str]) -> list[Record]:
        """`text` cut into the parts of each job. SlurmUnreadable when it is no table with these columns, when one
        record has another shape, or when a job is there twice."""
        *whole, rest = text.split(self.record_mark)
        mark, marks = self.field_mark, len(self.marked)
        found = [_parts(record, mark, marks) for record in whole]
        if rest or not found or _first(found[0]) != _HEADING:
            raise SlurmUnreadable("squeue printed no whole table", text=text[:2000])
        if len({_first(record) for record in found}) < len(found):
            raise SlurmUnreadable("squeue shows a job twice")
        if self.has_excluded:
            return found[1:]
        return [(*record, excluded.get(_first(record), "")) for record in found[1:]]


def _parts(text: str, mark: str, marks: int) -> Record:
    parts = text.split(mark)
    if len(parts) != 1 + marks or parts[0].count(_SEPARATOR) != len(_WRITTEN_BY_SLURM) - 1:
        raise SlurmUnreadable("squeue printed a record of another shape", text=text[:2000])
    return tuple(parts)


def exclusions_question(job: int | None = None) -> tuple[str, ...]:
    """The excluded nodes of each job, where the long format has no column for them."""
    return (*_SQUEUE, *_only(job), f"--format=%A{_SEPARATOR}%x")


def exclusions(text: str) -> dict[str, str]:
    """Host lists by the number of the job, for those that have one. Nobody's free text is in it. SlurmUnreadable when
    not even the heading is there."""
    heading, *lines = text.splitlines() or [""]
    if not heading.startswith(f"{_HEADING}{_SEPARATOR}"):
        raise SlurmUnreadable("squeue printed no table", text=text[:2000])
    said = (line.partition(_SEPARATOR) for line in lines)
    return {raw: listed for raw, _, listed in said if present(listed)}


def view_of(record: Record) -> JobView:
    """SlurmUnreadable when a value is not what its column should hold."""
    written, *free, excluded = record
    known = dict(zip(_WRITTEN_BY_SLURM.values(), written.split(_SEPARATOR), strict=True))
    known |= dict(zip(_FREE_TEXT.values(), free, strict=True))
    known |= {"ExcNodeList": excluded, "ExitCode": _exit_code(known["ExitCode"])}
    for name in _OPTIONAL_NUMBERS:
        if not present(known[name]):
            del known[name]
    if "task" not in known:
        del known["array"]  # squeue prints the job's own number there
    for name in _SAID_WHEN_THERE:
        if not present(known[name]) or known[name] == "NA":
            del known[name]
    with reading(_SEPARATOR.join(record)):
        return job_view(known, None)


def _first(record: Sequence[str]) -> str:
    return record[0].partition(_SEPARATOR)[0]


def _only(job: int | None) -> tuple[str, ...]:
    return (f"--jobs={job}",) if job is not None else ()


def _exit_code(text: str) -> str:
    """As "code:signal". Older versions print the wait status as one number."""
    return ":".join(map(str, exit_status(int(text)))) if text.isdecimal() else text
