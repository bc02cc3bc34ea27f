"""How sbatch reads its command line: just enough to find the script and a few options. Pure.

The table knows which options take a value, nothing else; an option that is not in it is passed on untouched (never
reject what Slurm may know). It holds the options of Slurm 22.05 to 25.11; a cluster test asks the installed sbatch
whether it agrees. Like getopt, sbatch accepts unambiguous beginnings of long names and stops at the first word that is
no option.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

NONE, REQUIRED, OPTIONAL = 0, 1, 2

# fmt: off
FLAGS = [
    "contiguous", "disable-stdout-job-summary", "external", "help", "hold", "ignore-pbs", "no-requeue", "overcommit",
    "oversubscribe", "parsable", "quiet", "reboot", "requeue", "share", "spread-job", "stepmgr", "test-only", "usage",
    "use-min-nodes", "verbose", "version", "wait",
]
WITH_OPTIONAL = ["exclusive", "get-user-env", "nice", "no-kill", "propagate"]
WITH_VALUE = [
    "account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster", "cluster-constraint",
    "clusters", "comment", "consolidate-segments", "constraint", "container", "container-id", "core-spec",
    "cores-per-socket", "cpu-freq", "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency",
    "distribution", "error", "exclude", "export", "export-file", "extra", "extra-node-info", "gid", "gpu-bind",
    "gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "input",
    "job-name", "kill-on-invalid-dep", "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind",
    "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core",
    "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "open-mode", "oom-kill-step", "output", "partition",
    "power", "prefer", "priority", "profile", "qos", "reservation", "resv-ports", "segment", "signal",
    "sockets-per-node", "switches", "thread-spec", "threads-per-core", "time", "time-min", "tmp", "tres-bind",
    "tres-per-task", "uid", "wckey", "workdir", "wrap",
]
LONG = {
    **dict.fromkeys(FLAGS, NONE),
    **dict.fromkeys(WITH_OPTIONAL, OPTIONAL),
    **dict.fromkeys(WITH_VALUE, REQUIRED),
}
SHORT = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task",
    "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "h": "help",
    "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "M": "clusters", "m": "distribution",
    "N": "nodes", "n": "ntasks", "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos",
    "S": "core-spec", "s": "oversubscribe", "t": "time", "u": "usage", "V": "version", "v": "verbose", "W": "wait",
    "w": "nodelist", "x": "exclude",
}
# fmt: on


@dataclass(frozen=True)
class Option:
    """One option as it was written. `at` and `until` delimit its words in argv; `value` None means it had none."""

    name: str
    value: str | None
    at: int
    until: int


@dataclass
class CommandLine:
    """`script_at` is the index of the script's word, None if the script is standard input or `--wrap`."""

    argv: list[str]
    options: list[Option] = field(default_factory=list)
    script_at: int | None = None
    het: bool = False

    def last(self, name: str) -> Option | None:
        """sbatch's rule for repeated options: the last one counts."""
        return next((option for option in reversed(self.options) if option.name == name), None)

    def has(self, *names: str) -> bool:
        return any(self.last(name) for name in names)


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Total: whatever sbatch would reject is left for sbatch to reject."""
    line = CommandLine(list(argv))
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "--":
            line.script_at = at + 1 if at + 1 < len(argv) else None
            return line
        if word == ":":
            line.het = True
            at += 1
        elif word.startswith("--"):
            at = _long(line, at)
        elif word.startswith("-") and word != "-":
            at = _short(line, at)
        else:
            line.script_at = at
            return line
    return line


def _long(line: CommandLine, at: int) -> int:
    name, equals, value = line.argv[at][2:].partition("=")
    name = _full_name(name)
    if equals:
        line.options.append(Option(name, value, at, at + 1))
        return at + 1
    if LONG.get(name, NONE) == REQUIRED and at + 1 < len(line.argv):
        line.options.append(Option(name, line.argv[at + 1], at, at + 2))
        return at + 2
    line.options.append(Option(name, None, at, at + 1))
    return at + 1


def _short(line: CommandLine, at: int) -> int:
    """Letters in one word: flags may be bundled, the first one with a value takes the rest or the next word."""
    letters = line.argv[at][1:]
    for index, letter in enumerate(letters):
        name = SHORT.get(letter, f"-{letter}")
        arity, rest = LONG.get(name, NONE), letters[index + 1 :]
        if arity == REQUIRED and not rest and at + 1 < len(line.argv):
            line.options.append(Option(name, line.argv[at + 1], at, at + 2))
            return at + 2
        if arity != NONE:
            line.options.append(Option(name, rest or None, at, at + 1))
            return at + 1
        line.options.append(Option(name, None, at, at + 1))
    return at + 1


def _full_name(name: str) -> str:
    """getopt's rule: an exact name, else the only one that begins so, else what was written."""
    if name in LONG or not name:
        return name
    found = [known for known in LONG if known.startswith(name)]
    return found[0] if len(found) == 1 else name
