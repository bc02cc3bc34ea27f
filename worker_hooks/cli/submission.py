"""What the wrapper will do for one sbatch command, decided from argv, environment and script. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from worker_hooks.cli import signals
from worker_hooks.cli.sbatch_options import BUILT_IN, CommandLine, Option, Table, read_command_line
from worker_hooks.cli.script_header import Header

PREFIX = "--relume-"
OWN_WITH_VALUE = ("name", "checkpoint-root", "url")
OWN_FLAGS = ("require", "dry-run")
_TRAPS = re.compile(rb"^[^#\n]*\btrap\b", re.MULTILINE)


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


def read_request(
    argv: Sequence[str],
    learn: Callable[[], Table] = lambda: BUILT_IN,
    is_script: Callable[[str], bool] = lambda word: False,
) -> Request:
    """Takes our options out of the part before the script. `learn` is asked once, if there is an option that the table
    does not know, for what the installed sbatch knows. Raises UsageError."""
    own: dict[str, str] = {}
    rest = list(argv)
    table: Table | None = None
    while True:
        line = read_command_line(rest, table or BUILT_IN, is_script)
        found = next((option for option in line.options if ("--" + option.name).startswith(PREFIX)), None)
        if found is not None:
            _take(found, rest, own)
        elif line.unknown and table is None:
            table = learn()
        else:
            return Request(own, line)


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
    """The sbatch call. `argv` is without the program's name; `exports` go into its environment; `notes` to stderr.
    `signal`: the warning before the time limit that the job will get, if any."""

    argv: list[str]
    environ: dict[str, str]
    settings: dict[str, str]
    job_name: str | None
    quiet: bool
    parsable: bool
    tracked: bool = True
    notes: list[str] = field(default_factory=list)
    signal: signals.SignalOption | None = None


def make_plan(
    request: Request, header: Header, environ: Mapping[str, str], exports: Mapping[str, str], script: bytes = b""
) -> Plan:
    """`exports` are what the job must see."""
    line = request.line
    plan = Plan(
        argv=list(line.argv),
        environ=without_identity(environ),
        settings={**header.relume, **request.own},
        job_name=_said("job-name", line, header, environ, "SBATCH_JOB_NAME"),
        quiet=line.has("quiet"),
        parsable=line.has("parsable") or header.sbatch.has("parsable"),
    )
    _export(plan, line, header, exports)
    _restartable(plan, line, header, environ)
    _warned(plan, line, header, environ, script)
    return plan


def without_identity(environ: Mapping[str, str]) -> dict[str, str]:
    """A job that submits another one passes its environment on: its own identity must not go with it."""
    return {name: value for name, value in environ.items() if name not in ("RELUME_RUN_ID", "RELUME_IDENTITY")}


def array_of(request: Request, header: Header, environ: Mapping[str, str]) -> str | None:
    """The array's tasks as sbatch is told; None for a single job. An empty list means none, wherever it stands."""
    return _said("array", request.line, header, environ, "SBATCH_ARRAY_INX") or None


def _said(name: str, line: CommandLine, header: Header, environ: Mapping[str, str], variable: str) -> str | None:
    """Slurm's precedence: command line, environment, script. What a het job is called its first component says."""
    for option in (
        line.last(name, component=0),
        None if variable in environ else header.sbatch.last(name, component=0),
    ):
        if option is not None:
            return option.value
    return environ.get(variable)


def _restartable(plan: Plan, line: CommandLine, header: Header, environ: Mapping[str, str]) -> None:
    """A job that may be requeued, and that then goes on writing its log: unless the user said anything about it, for
    any component. Of a het job what stands first holds for all components (tried)."""
    added = []
    said = line.has("requeue", "no-requeue") or header.sbatch.has("requeue", "no-requeue")
    if not said and not {"SBATCH_REQUEUE", "SBATCH_NO_REQUEUE"} & environ.keys():
        added.append("--requeue")
    if not line.has("open-mode") and not header.sbatch.has("open-mode") and "SBATCH_OPEN_MODE" not in environ:
        added.append("--open-mode=append")
    _add(plan, added)


def _add(plan: Plan, added: list[str]) -> None:
    if added:
        plan.argv[:0] = added
        plan.notes.append(f"added {' '.join(added)}")


def _warned(plan: Plan, line: CommandLine, header: Header, environ: Mapping[str, str], script: bytes) -> None:
    """A warning before the time limit, if RELUME_SIGNAL wants one and the user asked for none: never unasked, because a
    program without a handler dies of it. What the user asked for stays, and is commented on."""
    option = line.last("signal") or (None if "SBATCH_SIGNAL" in environ else header.sbatch.last("signal"))
    said = option.value if option is not None else environ.get("SBATCH_SIGNAL")
    plan.notes += signals.of_srun(script)
    try:
        if said is not None:
            traps = bool(_TRAPS.search(script))
            plan.signal = signals.parse(said)
            plan.notes += signals.warnings(plan.signal, script_traps=traps) + signals.unheard(plan.signal)
        elif option is None and environ.get(signals.ENVIRONMENT):
            plan.signal = signals.wanted(environ)
            _add(plan, [f"--signal={plan.signal.text}"])
            plan.notes += signals.warnings(plan.signal)
    except signals.SignalOptionError as error:
        if said is None:
            plan.notes.append(f"{signals.ENVIRONMENT}: {error}")


def _export(plan: Plan, line: CommandLine, header: Header, exports: Mapping[str, str]) -> None:
    """Our variables go into sbatch's environment, and onto the user's `--export` list if there is one."""
    plan.environ.update(exports)
    written = [option for option in line.options if option.name == "export" and option.value is not None]
    for option in reversed(written):
        merged = merged_export(option.value or "", exports)
        if merged != option.value:
            replace_value(plan.argv, option, merged)
    if written:
        return
    if "SBATCH_EXPORT" in plan.environ:
        plan.environ["SBATCH_EXPORT"] = merged_export(plan.environ["SBATCH_EXPORT"], exports)
        return
    in_script = header.sbatch.last("export", component=0)
    if in_script is not None and in_script.value is not None:
        merged = merged_export(in_script.value, exports)
        if merged != in_script.value:
            plan.argv.insert(0, "--export=" + merged)


def replace_value(argv: list[str], option: Option, value: str, in_front: int = 0) -> None:
    """In as many words as before, so that every other option stays where it was read."""
    at, last = option.at + in_front, option.until - 1 + in_front
    argv[last] = f"--{option.name}={value}" if at == last else value


def merged_export(value: str, exports: Mapping[str, str]) -> str:
    """The user's list with our names on it. `NONE` and a list both start from the login environment, so the list of our
    names alone is `NONE` and them. sbatch takes no blanks around an item (tried): `B , ALL` exports neither."""
    items = value.upper().split(",")
    if "ALL" in items:
        return value
    names = ",".join(exports)
    return names if items in (["NONE"], ["NIL"], [""]) else f"{value},{names}"


def merged_export_file(content: bytes, exports: Mapping[str, str]) -> bytes:
    """The user's `--export-file` with our variables: with such a file sbatch passes on nothing else (tried)."""
    separated = content if not content or content.endswith(b"\0") else content + b"\0"
    return separated + b"".join(f"{name}={value}\0".encode(errors="surrogateescape") for name, value in exports.items())
