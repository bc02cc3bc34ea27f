"""What slurmstepd, srun and slurmd print into a job's log, Slurm 20.11 to 26.05."""

import re
from dataclasses import replace

from worker_hooks.signs.found import Found, first, pattern, short, sign, whole
from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.sign import Scalar, Sign
from worker_hooks.signs.system_texts import signal_of
from worker_hooks.signs.times import read_stamp

_ENTITY = r"\*\*\* (?P<kind>JOB|STEP|EXTERN STEP|INTERACTIVE STEP)(?: FOR)? (?P<id>[\d._+A-Za-z]+)"
_CANCELLED = re.compile(
    _ENTITY
    + r"(?: ON (?P<host>[\w.-]+))? CANCELLED AT (?P<at>[\dT:.+-]*)(?: DUE [Tt][Oo] (?P<why>[^*]*))? ?(?P<end>\*\*\*)?"
)
_TERMINATED = re.compile(
    _ENTITY + r" STEPD TERMINATED ON (?P<host>[\w.-]+)(?: AT (?P<at>[\dT:.+-]*))?(?: DUE TO (?P<why>[^*]*))?"
)
_FAILED = re.compile(_ENTITY + r" ON (?P<host>[\w.-]+) FAILED \(")
_MEMORY = re.compile(_ENTITY + r" ON (?P<host>[\w.-]+) (?P<text>UNCORRECTABLE MEMORY ERROR)(?: AT (?P<at>[\dT:.+-]*))?")
# The first words are enough: the line may be cut.
_REASONS = (
    ("TIME LIMIT", "slurm.time_limit"),
    ("NODE FAIL", "slurm.node_failure"),
    ("PREEMPT", "slurm.preempted"),
    ("JOB REQUEUE", "slurm.requeued"),
    ("TASK FAILURE", "slurm.cancelled_by_node"),
)
_TASKS = re.compile(r"(?P<host>[\w.\[\],-]+): tasks? (?P<tasks>\d[\d,-]*): (?P<what>.+)$")
_EXITED = re.compile(r"Exited with exit code (?P<code>\d+)")

_PATTERNS = (
    pattern(
        "slurm.oom",
        "oom",
        r"Detected (?P<events>\d+) oom[_-]kill event(?:\(s\)|s)? in (?:StepId=|step "
        r")(?P<id>\d[\d._+A-Za-z]*\w)",
    ),
    pattern(
        "slurm.oom",
        "xceeded",
        r"[Ee]xceeded (?:job|step) memory limit|(?:Step|Job|StepId=|JobId=) ?(?P<id>[\d._+]+)?.{0,"
        r"20}exceeded memory limit",
    ),
    pattern(
        "slurm.launch_failed",
        "ask launch for",
        r"(?:StepId=|[Tt]ask launch for )(?P<id>[\d._+A-Za-z]*\d[\d._+A-Za-z]*) failed on node "
        r"(?P<host>[\w.-]+): (?P<text>.*)",
    ),
    pattern(
        "slurm.launch_failed", "launch failed", r"(?P<text>(?:[Aa]pplication|task \d+) launch (?:add )?failed: .*)"
    ),
    pattern("slurm.launch_failed", "task launch", r"(?P<text>timeout waiting for task launch.*)"),
    pattern(
        "slurm.launch_failed",
        "credential",
        r"(?P<text>Job credential (?:expired|revoked|replayed).*|Invalid job credential.*)",
    ),
    pattern(
        "slurm.launch_failed", "Unable to create step", r"(?P<text>Unable to create step for job (?P<id>[\d_+]+).*)"
    ),
    pattern(
        "slurm.launch_failed",
        "rolog",
        r"(?P<text>(?:Batch job |[Tt]ask|slurm_)?[Pp]rolog (?:failure on node (?P<host>[\w.-]+)|"
        r"failed status=\S+|launch failure|hung|error|.{0,60}failed).*)",
    ),
    pattern(
        "slurm.command_failed",
        "execve",
        r"(?P<text>(?:error:? )?execve\(\)?: .*(?:No such file or directory|Permission denied|Exec format error).*)",
    ),
    pattern(
        "slurm.launch_failed",
        "execve",
        r"(?P<text>(?:Slurmd could not|error:? )?execve\(\)?.*|.{0,60}could not execve job.*)",
    ),
    pattern(
        "slurm.epilog_failed",
        "pilog",
        r"(?P<text>(?:[Tt]ask|slurm_)?[Ee]pilog (?:failed status=\S+|error(?: on "
        r"(?P<host>[\w.-]+?))?|.{0,60}failed)(?:,|$| ).*)",
    ),
    pattern("slurm.node_lost", "ode failure on", r"[Nn]ode failure on (?P<host>[\w.\[\],-]+)"),
    pattern("slurm.time_limit", "Time limit exhausted", r"Time limit exhausted for (?:JobId=|job )(?P<id>[\d_+]+)"),
    pattern("slurm.connection", "MESSAGE_TASK_EXIT", r"(?P<text>Failed to send MESSAGE_TASK_EXIT.*)"),
    pattern(
        "slurm.connection", "step completion message", r"(?P<text>Rank \d+ failed sending step completion message.*)"
    ),
    pattern("slurm.connection", "contact slurm controller", r"(?P<text>Unable to contact slurm controller.*)"),
    pattern("slurm.connection", "ocket timed out", r"(?P<text>(?:\w+: )?Socket timed out on send/recv operation.*)"),
    pattern("slurm.connection", "io error", r"(?P<text>(?:\w+: )?[Aa]borting, (?:step missing and )?io error .*)"),
    pattern("slurm.connection", "error reading header", r"(?P<text>_server_read: .*)"),
    pattern("slurm.connection", "eio_handle_mainloop", r"(?P<text>eio_handle_mainloop: .*)"),
    pattern("slurm.connection", "test connection to node", r"(?P<text>Aborting, can not test connection to node.*)"),
    pattern("slurm.aborted", "Job step aborted", r"(?P<text>Job step aborted.*)"),
    pattern("slurm.aborted", "Terminating ", r"srun: (?P<text>Terminating (?:job step |StepId=).*)"),
    pattern("slurm.aborted", "Force Terminated", r"(?P<text>Force Terminated (?:job|step|StepId|JobId).*)"),
    pattern("slurm.aborted", "waiting for job step", r"(?P<text>Timed out waiting for job step to complete.*)"),
    pattern("slurm.aborted", "has been revoked", r"(?P<text>Job (?:allocation )?[\d_+]+ has been revoked.*)"),
    pattern("slurm.aborted", "First task exited", r"(?P<text>First task exited.*)"),
)
_SPEAKERS = (
    "slurm",
    "srun",
    "***",
    "rror: ",
    "credential",
    "rolog",
    "pilog",
    "Force Term",
    "ob step",
    "odeId",
    "launch",
)


class SlurmTexts:
    triggers: tuple[bytes, ...] = (b"rror", b"*** ", b"srun: ")

    def read(self, line: Line) -> list[Sign]:
        if not any(word in line.text or word in line.raw for word in _SPEAKERS):
            return []
        found = _ended(line.text) if "***" in line.text else _tasks(line.text) or first(_PATTERNS, line.text)
        if found is None:
            return []
        attrs = dict(found.attrs)
        at = attrs.pop("at", "")
        stamp = read_stamp(str(at))
        made = sign(line, replace(found, attrs=attrs))
        return [made if stamp is None or made.at is not None else replace(made, at=stamp.value)]

    def close(self) -> list[Sign]:
        return []


def _ended(text: str) -> Found | None:
    """The lines between asterisks, each printed by one node in its own name: not a word about who failed."""
    if match := _TERMINATED.search(text):
        code = "slurm.launch_failed" if "NOT RUNNING" in (match["why"] or "") else "slurm.step_unkillable"
        return _entity(match, code, {"text": short(match["why"] or "")} if code == "slurm.launch_failed" else {})
    if match := _CANCELLED.search(text):
        why = (match["why"] or "").strip()
        cut = not match["end"] and len(why) > 3
        code = next(
            (code for words, code in _REASONS if words in why or (cut and words.startswith(why))), "slurm.cancelled"
        )
        more: dict[str, Scalar] = {"kind": match["kind"].split(" ", 1)[0]}
        if not match["end"]:
            more["truncated"] = True  # a reason may have stood behind
        return _entity(match, code, more)
    if match := _FAILED.search(text):
        return _entity(match, "slurm.cancelled_by_node", {"kind": match["kind"]})
    if match := _MEMORY.search(text):
        return Found("memory.uncorrected", {"text": match["text"], "at": match["at"] or ""}, None, match["host"])
    return None


def _entity(match: re.Match[str], code: str, more: dict[str, Scalar]) -> Found:
    attrs: dict[str, Scalar] = {**more, "id": match["id"], "at": match.groupdict().get("at") or ""}
    host = match["host"]
    return Found(code, {**attrs, "host": host} if host else attrs, None, host)


def _tasks(text: str) -> Found | None:
    """`gn21: tasks 2-3: Exited with exit code 1`, `gn09: task 0: Aborted (core dumped)`."""
    match = _TASKS.search(text) if ": task" in text else None
    if match is None:
        return None
    host, what = match["host"], match["what"].strip()
    node = None if "[" in host or "," in host else host
    if what.startswith("Out Of Memory"):
        return Found("slurm.oom", {"host": host}, None, node)
    attrs: dict[str, Scalar] = {"host": host, "tasks": match["tasks"]}
    if exited := _EXITED.match(what):
        attrs["exit_code"] = whole(exited["code"]) or 0
    elif (number := signal_of(what.split(" (", 1)[0].split(":", 1)[0])) is not None:
        attrs["signal"] = number
        attrs["core_dumped"] = "core dumped" in what
    else:
        return None
    return Found("slurm.task_exit", attrs, None, node)
