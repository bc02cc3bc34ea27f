"""The ways Slurm spells a job: `123`, `123_4`, `123_[1,3-5%2]`, `93+1`, with a step, with a cluster, as sbatch says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

_SUBMITTED = re.compile(r"Submitted batch job (0*[1-9]\d*)(?: on cluster (\S+))?", re.ASCII)
_TASKS = r"\d+(?:-\d+(?::\d+)?)?"
_FORM = re.compile(
    r"(?P<job>0*[1-9]\d*)"
    rf"(?:_(?P<task>\d+)|_\[(?P<tasks>{_TASKS}(?:,{_TASKS})*(?:,?\.\.\.)?)(?:%(?P<limit>\d+))?\]|\+(?P<offset>\d+))?"
    r"(?:\.(?P<step>[A-Za-z0-9_+]+))?"
    r"(?:;(?P<cluster>[\w.-]+))?",
    re.ASCII,
)

_RANGE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+)(?::(?P<step>\d+))?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class JobRef:
    """What one spelling says. `job` is the array's or the het job's id where there is a task or an offset."""

    job: int
    task: int | None = None
    tasks: str | None = None
    limit: int | None = None
    offset: int | None = None
    step: str | None = None
    cluster: str | None = None

    @property
    def target(self) -> str:
        """The spelling that scontrol takes for exactly this job, task or component (no step, no cluster)."""
        if self.task is not None:
            return f"{self.job}_{self.task}"
        if self.tasks is not None:
            return f"{self.job}_[{self.tasks}]"
        if self.offset is not None:
            return f"{self.job}+{self.offset}"
        return str(self.job)

    def names(self, record: Record) -> bool:
        """Is it this record that the spelling means? Asked among those of one job, array or het job.

        A task that was not split off yet is in the record of those that wait.
        """
        if self.task is not None:
            return record.array_task_id == self.task or waits_in(record.array_tasks, self.task)
        return record.het_job_offset == self.offset if self.offset is not None else record.raw_id == self.job


class Record(Protocol):
    """The numbers of a `JobView`."""

    @property
    def raw_id(self) -> int: ...
    @property
    def array_task_id(self) -> int | None: ...
    @property
    def array_tasks(self) -> str: ...
    @property
    def het_job_offset(self) -> int | None: ...


def waits_in(tasks: str, task: int) -> bool:
    """Is `task` in "1,5-9:2%2"? Slurm ends a long list with "...", which leaves open what is behind its last number."""
    listed = tasks.partition("%")[0]
    ranges = [_RANGE.fullmatch(part) for part in listed.split(",") if part != "..."]
    found = [range(int(r["first"]), int(r["last"] or r["first"]) + 1, int(r["step"] or 1)) for r in ranges if r]
    return any(task in each for each in found) or ("..." in listed and all(task > each[-1] for each in found))


def parse(text: str) -> JobRef:
    """ValueError for everything that is not one of the forms: a job id is never guessed."""
    stripped = text.strip()
    if submitted := _SUBMITTED.fullmatch(stripped):
        return JobRef(int(submitted.group(1)), cluster=submitted.group(2))
    found = _FORM.fullmatch(stripped)
    if not found:
        raise ValueError(f"not a Slurm job id: {text!r}")
    if any(first > last for first, last in _ends(found["tasks"] or "")):
        raise ValueError(f"not a Slurm job id: {text!r}: a range of tasks that runs backwards")
    return JobRef(
        job=int(found["job"]),
        task=_number(found["task"]),
        tasks=found["tasks"],
        limit=_number(found["limit"]),
        offset=_number(found["offset"]),
        step=found["step"],
        cluster=found["cluster"],
    )


def own_target(env: Mapping[str, str]) -> str:
    """The job a process runs in, as a write must name it: inside an array task SLURM_JOB_ID is another number, and
    the array's own id would hit every task. ValueError outside of a job."""
    array, task = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    return parse(f"{array}_{task}" if array and task else env.get("SLURM_JOB_ID", "")).target


def _ends(tasks: str) -> list[tuple[int, int]]:
    ranges = [_RANGE.fullmatch(part) for part in tasks.split(",")]
    return [(int(r["first"]), int(r["last"] or r["first"])) for r in ranges if r]


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
