"""The kernel's out-of-memory killer: one sign for each process that it killed, though it writes many lines of one."""

import re
from dataclasses import dataclass

from worker_hooks.signs.reading import sign_of
from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.sign import Scalar, Sign

_CONSTRAINT = re.compile(r"oom-kill:constraint=(?:CONSTRAINT_)?(?P<constraint>\w+)(?P<rest>.*)", re.S)
_FIELD = re.compile(r"(?:^|,)(?P<name>oom_memcg|task_memcg|task|pid|uid)=(?P<value>[^,]*)")
_KILL = re.compile(
    r"(?P<where>Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?): Kill(?:ed)? process "
    r"(?P<pid>\d{1,10})(?:, UID (?P<uid>\d{1,10}),?)?,? \((?P<process>.*?)\)(?= total-vm|,| score|\.|\s*$)"
)
_KILLED = re.compile(
    r"Killed process (?P<pid>\d{1,10})(?:, UID (?P<uid>\d{1,10}),?)?,? \((?P<process>.*?)\)(?= total-vm|,|\.|\s*$)"
)
_UID = re.compile(r"\bUID:(\d{1,10})")
_TASK_IN = re.compile(r"Task in (?P<task>\S+) killed as a result of limit of (?P<limit>\S+)")
_REAPED = re.compile(r"oom_reaper: reaped process (?P<pid>\d{1,10}) \((?P<process>.*?)\),")
_JOB = re.compile(r"/job_(\d{1,12})(?:/|$)")
_NEAR_LINES = 400
_PIDS = 256


@dataclass
class _Pending:
    """What has been read of a kill whose own line has not come yet."""

    line: Line
    constraint: str = ""
    cgroup: str = ""
    job: str = ""
    process: str = ""
    pid: int | None = None
    uid: int | None = None


class OomReader:
    triggers: tuple[bytes, ...] = (
        b"oom-kill:constraint",
        b"ut of memory: Kill",
        b"ut of memory (oom_kill_allocating_task)",
        b"Killed process ",
        b"oom_reaper: reaped",
        b"killed as a result of limit",
    )

    def __init__(self) -> None:
        self._pending: _Pending | None = None
        self._reaped: _Pending | None = None
        self._killed: dict[tuple[str | None, int], int] = {}
        self._last_kill = -_NEAR_LINES - 1

    def read(self, line: Line) -> list[Sign]:
        text = line.text
        signs = self._overdue(line)
        if "oom-kill:constraint" in text:
            signs += self._constraint(line)
        elif "killed as a result of limit" in text:
            self._task_in(line)
        elif "oom_reaper" in text:
            self._reap(line)
        elif "Kill" in text:
            signs += self._kill(line)
        return signs

    def close(self) -> list[Sign]:
        signs = self._given_up()
        self._pending = self._reaped = None
        return signs

    def _constraint(self, line: Line) -> list[Sign]:
        match = _CONSTRAINT.search(line.text)
        if not match:
            return []
        signs = self._given_up() if self._pending else []
        fields = {field["name"]: field["value"] for field in _FIELD.finditer(match["rest"])}
        constraint = match["constraint"].lower()
        cgroup = fields.get("oom_memcg") or fields.get("task_memcg", "")
        self._pending = _Pending(
            line,
            constraint=constraint if constraint in ("memcg", "none", "cpuset", "memory_policy") else "",
            cgroup=cgroup,
            job=_job(fields.get("task_memcg", "")) or _job(cgroup),
            process=fields.get("task", ""),
            pid=_number(fields.get("pid")),
            uid=_number(fields.get("uid")),
        )
        return signs

    def _task_in(self, line: Line) -> None:
        match = _TASK_IN.search(line.text)
        if match:
            job = _job(match["task"]) or _job(match["limit"])
            self._pending = _Pending(line, constraint="memcg", cgroup=match["limit"], job=job)

    def _reap(self, line: Line) -> None:
        """Not a second kill; the only word of the first where its line is lost."""
        match = _REAPED.search(line.text)
        if match and line.number - self._last_kill > _NEAR_LINES:
            self._reaped = _Pending(line, process=match["process"], pid=int(match["pid"]))

    def _kill(self, line: Line) -> list[Sign]:
        match = _KILL.search(line.text) or (_KILLED.search(line.text) if self._expects(line) else None)
        if not match:
            return []
        pid = int(match["pid"])
        known = self._killed.get((line.node, pid))
        self._last_kill = line.number
        self._reaped = None
        self._remember(line, pid)
        if known is not None and line.number - known <= _NEAR_LINES:
            self._pending = None
            return []
        where = match.groupdict().get("where") or ""
        context = self._pending or _Pending(line)
        self._pending = None
        uid = _UID.search(line.text)
        found = _Pending(
            line,
            constraint=context.constraint
            or ("memcg" if where.startswith("Memory cgroup") else "none" if where else ""),
            cgroup=context.cgroup,
            job=context.job,
            process=match["process"],
            pid=pid,
            uid=_number(match["uid"]) or (int(uid[1]) if uid else context.uid),
        )
        return [_sign(found)]

    def _expects(self, line: Line) -> bool:
        """Old kernels: the second line of a kill; on its own it may be anybody's words."""
        return line.source == "kernel" or line.number - self._last_kill <= _NEAR_LINES

    def _remember(self, line: Line, pid: int) -> None:
        self._killed[(line.node, pid)] = line.number
        if len(self._killed) > _PIDS:
            del self._killed[next(iter(self._killed))]

    def _overdue(self, line: Line) -> list[Sign]:
        oldest = self._pending or self._reaped
        return self._given_up() if oldest and line.number - oldest.line.number > _NEAR_LINES else []

    def _given_up(self) -> list[Sign]:
        """Kills whose own line never came: known by pid, or by what was reaped."""
        signs = []
        for found in (self._pending, self._reaped):
            if found is not None and found.pid is not None and (found.line.node, found.pid) not in self._killed:
                signs.append(_sign(found))
                self._remember(found.line, found.pid)
        self._pending = self._reaped = None
        return signs


class OomInJobReader(OomReader):
    """For job logs: only the lines that say it by themselves."""

    triggers: tuple[bytes, ...] = (b"ut of memory: Kill",)


def _job(cgroup: str) -> str:
    match = _JOB.search(cgroup)
    return match[1] if match else ""


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 12 else None


def _sign(found: _Pending) -> Sign:
    attrs: dict[str, Scalar | None] = {
        "pid": found.pid,
        "process": found.process,
        "uid": found.uid,
        "constraint": found.constraint,
        "cgroup": found.cgroup,
        "slurm_job": found.job,
    }
    return sign_of(found.line, "oom.kill", attrs)
