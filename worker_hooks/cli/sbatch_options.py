"""How sbatch reads its command line: just enough to find the script and a few options. Pure.

The table knows which options take a value, nothing else; an option that is not in it is passed on untouched (never
reject what Slurm may know). It holds the options of Slurm 22.05 to 25.11; a cluster test asks the installed sbatch
whether it agrees. Like getopt, sbatch accepts unambiguous beginnings of long names and stops at the first word that is
no option. Before that, every ":" between the components of a het job is left out (tried: also after an option that
wants a value).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

NONE, REQUIRED, OPTIONAL = 0, 1, 2
OWN_PREFIX = "relume-"

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
    "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-tres", "open-mode", "oom-kill-step",
    "output", "partition", "power", "prefer", "priority", "profile", "qos", "reservation", "resv-ports", "segment",
    "signal", "sockets-per-node", "switches", "thread-spec", "threads-per-core", "time", "time-min", "tmp",
    "tres-bind", "tres-per-task", "uid", "wait-all-nodes", "wckey", "workdir", "wrap",
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
class Table:
    """Options by long name, with their arity, and the long names of letters. `listed`: those that the installed sbatch
    says it has; it knows some more."""

    long: Mapping[str, int]
    short: Mapping[str, str]
    listed: frozenset[str] = frozenset()

    def full_name(self, name: str) -> str | None:
        """getopt's rule: an exact name, else the only one that begins so; None for none or several."""
        if name in self.long:
            return name
        for names in (self.listed, self.long):
            found = [known for known in names if name and known.startswith(name)]
            if len(found) == 1:
                return found[0]
        return None


BUILT_IN = Table(LONG, SHORT)
_HELP_LINE = re.compile(r"\s+(?:-(?P<letter>\w),? +)?--(?P<no>\[no-\])?(?P<name>[a-z][a-z0-9-]*)(?P<value>\[?=)?", re.A)


def read_help(text: str) -> Table:
    """The options that `sbatch --help` lists, those of a site's plugins too. What it says about values is not always
    so: for an option that the table knows the table counts."""
    long: dict[str, int] = {}
    short: dict[str, str] = {}
    for line in text.splitlines():
        found = _HELP_LINE.match(line)
        if found is None:
            continue
        arity = {None: NONE, "=": REQUIRED, "[=": OPTIONAL}[found["value"]]
        for name in (found["name"], f"no-{found['name']}") if found["no"] else (found["name"],):
            long[name] = LONG.get(name, arity)
        if found["letter"]:
            short[found["letter"]] = found["name"]
    return Table({**LONG, **long}, {**SHORT, **short}, frozenset(long))


@dataclass(frozen=True)
class Option:
    """One option as it was written. `at` and `until` delimit its words in argv; `value` None means it had none.
    `component` counts the parts of a het job from 0."""

    name: str
    value: str | None
    at: int
    until: int
    component: int = 0


@dataclass
class CommandLine:
    """`script_at` is the index of the script's word, None if the script is standard input or `--wrap`. `unknown`:
    options without "=" that may or may not take the next word."""

    argv: list[str]
    options: list[Option] = field(default_factory=list)
    script_at: int | None = None
    components: int = 1
    unknown: list[str] = field(default_factory=list)

    def last(self, *names: str, component: int | None = None) -> Option | None:
        """sbatch's rule for repeated options: the last one counts. Of one component, or of any."""
        return next(
            (
                option
                for option in reversed(self.options)
                if option.name in names and component in (None, option.component)
            ),
            None,
        )

    def has(self, *names: str) -> bool:
        return self.last(*names) is not None


def read_command_line(
    argv: Sequence[str], table: Table = BUILT_IN, is_script: Callable[[str], bool] = lambda word: False
) -> CommandLine:
    """Total: whatever sbatch would reject is left for sbatch to reject. `is_script` decides only whether the word after
    an unknown option is that option's value: yes, if a later word is a script and this one is not."""
    reader = _Reader(CommandLine(list(argv)), table, is_script)
    line, at = reader.line, 0
    while at < len(argv):
        word = argv[at]
        if word == ":":
            line.components += 1
            at += 1
        elif word == "--":
            line.script_at = next(reader.words_from(at + 1), None)
            return line
        elif word.startswith("-") and word != "-":
            at = reader.take(at)
        else:
            line.script_at = at
            return line
    return line


def read_directives(words: Sequence[str]) -> CommandLine:
    """The words of a script's `#SBATCH` lines. A word that is no option (sbatch refuses it, unless it is the value of
    an option that only sbatch knows) ends nothing: what comes after it was said too."""
    reader = _Reader(CommandLine(list(words)), BUILT_IN, lambda word: False)
    at = 0
    while at < len(words):
        if words[at] == ":":
            reader.line.components += 1
        at = reader.take(at) if words[at].startswith("-") else at + 1
    return reader.line


@dataclass
class _Reader:
    line: CommandLine
    table: Table
    is_script: Callable[[str], bool]

    def take(self, at: int) -> int:
        """Reads the option word at `at`; returns where the next word is."""
        return self._long(at) if self.line.argv[at].startswith("--") else self._short(at)

    def words_from(self, at: int) -> Iterator[int]:
        return (index for index in range(at, len(self.line.argv)) if self.line.argv[index] != ":")

    def _long(self, at: int) -> int:
        written, equals, value = self.line.argv[at][2:].partition("=")
        name = self.table.full_name(written)
        if equals:
            return self._add(name or written, value, at, at + 1)
        if name is None:
            return self._unknown(written, at)
        return self._next(name, at) if self.table.long[name] == REQUIRED else self._add(name, None, at, at + 1)

    def _short(self, at: int) -> int:
        """Letters in one word: flags may be bundled, the first one with a value takes the rest or the next word."""
        letters = self.line.argv[at][1:]
        for index, letter in enumerate(letters):
            name, rest = self.table.short.get(letter), letters[index + 1 :]
            if name is None and not rest:
                return self._unknown(f"-{letter}", at)
            arity = OPTIONAL if name is None else self.table.long.get(name, LONG.get(name, NONE))
            if arity == REQUIRED and not rest:
                return self._next(name or "", at)
            if arity != NONE:
                if name is None:
                    self.line.unknown.append(f"-{letter}")
                return self._add(name or f"-{letter}", rest or None, at, at + 1)
            self._add(name or "", None, at, at + 1)
        return at + 1

    def _next(self, name: str, at: int) -> int:
        """The value is the next word, if there is one."""
        value_at = next(self.words_from(at + 1), None)
        if value_at is None:
            return self._add(name, None, at, at + 1)
        return self._add(name, self.line.argv[value_at], at, value_at + 1)

    def _unknown(self, written: str, at: int) -> int:
        if written.startswith(OWN_PREFIX):
            return self._add(written, None, at, at + 1)
        self.line.unknown.append(written)
        following = list(self.words_from(at + 1))
        if following and not self.line.argv[following[0]].startswith("-"):
            here, *later = (self.is_script(self.line.argv[index]) for index in following)
            if not here and any(later):
                return self._next(written, at)
        return self._add(written, None, at, at + 1)

    def _add(self, name: str, value: str | None, at: int, until: int) -> int:
        self.line.options.append(Option(name, value, at, until, self.line.components - 1))
        return until
