"""What the wrapper will do for one sbatch command, decided from argv, environment and script. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from worker_hooks.cli.sbatch_options import CommandLine, Option, read_command_line
from worker_hooks.cli.script_header import Header

PREFIX = "--relume-"
OWN_WITH_VALUE = ("name", "checkpoint-root", "url")
OWN_FLAGS = ("require", "dry-run")


class UsageError(ValueError):
    """Our own options cannot be understood; nothing was submitted."""


@dataclass
class Request:
    """argv taken apart: `own` holds the `--relume-*` options, `line` is the rest, for sbatch, in the user's order."""

    own: dict[str, str]
    line: CommandLine

    @property
    def passes_through(self) -> bool:
        """sbatch will submit nothing: there is nothing to track."""
        return self.line.has("help", "usage", "version", "test-only")


def read_request(argv: Sequence[str]) -> Request:
    """Takes our options out of the part before the script. Raises UsageError."""
    own: dict[str, str] = {}
    rest = list(argv)
    while True:
        line = read_command_line(rest)
        found = next((option for option in line.options if ("--" + option.name).startswith(PREFIX)), None)
        if found is None:
            return Request(own, line)
        _take(found, rest, own)


def _take(option: Option, rest: list[str], own: dict[str, str]) -> None:
    name, value, until = option.name.removeprefix(PREFIX[2:]), option.value, option.until
    if name in OWN_FLAGS and value is None:
        value = "yes"
    elif name in OWN_WITH_VALUE and value is None and until < len(rest):
        value, until = rest[until], until + 1
    elif name not in OWN_WITH_VALUE or not value:
        known = ", ".join(PREFIX + item for item in (*OWN_WITH_VALUE, *OWN_FLAGS))
        raise UsageError(f"{PREFIX}{name}: expected one of {known}; the first three take a value")
    own[name] = value or ""
    del rest[option.at : until]


@dataclass
class Plan:
    """The sbatch call. `argv` is without the program's name; `exports` go into its environment; `notes` to stderr."""

    argv: list[str]
    environ: dict[str, str]
    settings: dict[str, str]
    job_name: str | None
    quiet: bool
    parsable: bool
    tracked: bool
    notes: list[str] = field(default_factory=list)


def make_plan(
    request: Request, header: Header, environ: Mapping[str, str], exports: Mapping[str, str], array: bool
) -> Plan:
    """`exports` are what the job must see. An array's tasks get none: each is a training job of its own."""
    line = request.line
    plan = Plan(
        argv=list(line.argv),
        environ=without_identity(environ),
        settings={**header.relume, **request.own},
        job_name=_said("job-name", line, header, environ, "SBATCH_JOB_NAME"),
        quiet=line.has("quiet"),
        parsable=line.has("parsable") or header.sbatch.has("parsable"),
        tracked=not array,
    )
    if array:
        plan.notes.append("array: every task is a training job of its own, tracked from Slurm's side")
    else:
        _export(plan, line, header, exports)
    _restartable(plan, line, header, environ)
    return plan


def without_identity(environ: Mapping[str, str]) -> dict[str, str]:
    """A job that submits another one passes its environment on: its own identity must not go with it."""
    return {name: value for name, value in environ.items() if name not in ("RELUME_RUN_ID", "RELUME_IDENTITY")}


def is_array(request: Request, header: Header, environ: Mapping[str, str]) -> bool:
    return _said("array", request.line, header, environ, "SBATCH_ARRAY_INX") is not None


def _said(name: str, line: CommandLine, header: Header, environ: Mapping[str, str], variable: str) -> str | None:
    """Slurm's precedence: command line, environment, script."""
    for option in (line.last(name), None if variable in environ else header.sbatch.last(name)):
        if option is not None:
            return option.value
    return environ.get(variable)


def _restartable(plan: Plan, line: CommandLine, header: Header, environ: Mapping[str, str]) -> None:
    """A job that may be requeued, and that then goes on writing its log: unless the user said anything about it."""
    added = []
    said = line.has("requeue", "no-requeue") or header.sbatch.has("requeue", "no-requeue")
    if not said and not {"SBATCH_REQUEUE", "SBATCH_NO_REQUEUE"} & environ.keys():
        added.append("--requeue")
    if not line.has("open-mode") and not header.sbatch.has("open-mode") and "SBATCH_OPEN_MODE" not in environ:
        added.append("--open-mode=append")
    if added:
        plan.argv[:0] = added
        plan.notes.append(f"added {' '.join(added)}")


def _export(plan: Plan, line: CommandLine, header: Header, exports: Mapping[str, str]) -> None:
    """Our variables go into sbatch's environment, and onto the user's `--export` list if there is one."""
    plan.environ.update(exports)
    written = [option for option in line.options if option.name == "export" and option.value is not None]
    for option in reversed(written):
        plan.argv[option.at : option.until] = ["--export=" + merged_export(option.value or "", exports)]
    if written:
        return
    if "SBATCH_EXPORT" in plan.environ:
        plan.environ["SBATCH_EXPORT"] = merged_export(plan.environ["SBATCH_EXPORT"], exports)
        return
    in_script = header.sbatch.last("export")
    if in_script is not None and in_script.value is not None:
        merged = merged_export(in_script.value, exports)
        if merged != in_script.value:
            plan.argv.insert(0, "--export=" + merged)


def merged_export(value: str, exports: Mapping[str, str]) -> str:
    """The user's list with our names on it. `NONE` and a list both start from the login environment, so the list of our
    names alone is `NONE` and them."""
    items = [item.strip().upper() for item in value.split(",")]
    if "ALL" in items:
        return value
    names = ",".join(exports)
    return names if items in (["NONE"], ["NIL"], [""]) else f"{value},{names}"
