"""Reads a log, as it grows or as a whole, into signs: cleans it, finds the lines that matter, asks the recognisers.

Nothing in a log can hurt: a line is cut at a bound, bytes that are no text become a mark, colours and NUL bytes go
away, a burst becomes one sign with a count, and a recogniser that fails costs its own sign only.
"""

import re
from collections.abc import Iterable, Sequence, Set

from worker_hooks.signs.bursts import Bursts
from worker_hooks.signs.job_recognisers import job_recognisers
from worker_hooks.signs.kernel import kernel_in_job_recognisers, kernel_recognisers
from worker_hooks.signs.lines import LINE_BYTES, first_end, last_end
from worker_hooks.signs.prefixes import Prefixes
from worker_hooks.signs.recogniser import Line, Recogniser
from worker_hooks.signs.sample import Sampler
from worker_hooks.signs.scan import Scanner
from worker_hooks.signs.sign import Sign
from worker_hooks.signs.times import Clock

KERNEL, JOB = "kernel", "job"

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_]|\([AB0])?")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_QUOTE = re.compile(r"(?<!\w)['\"]")  # that opens: not the one of `didn't`
# The OOM killer's lines end in the names of cgroups, without quotes: whoever may make one may name it like an Xid.
_NAMES_CGROUPS = re.compile(r"oom-kill:|Memory cgroup stats for |Tasks? in /")
OOM = "oom."
_PIECE = 1 << 20


class LogReader:
    """One log. `kind`: KERNEL or JOB. `node`, `rank`: whose log it is, where a line does not say. `year`: for time
    stamps without one, `booted_at` for seconds since boot, `utc_offset_s` for stamps without a zone. `hosts`: names of
    nodes, where they are known. `extra`: recognisers besides those of the kind. `source`: of the signs, in the place of
    `kernel` or `job_log`. `whole`: all signs come from `close`, each burst exactly one.

    How the bytes are cut into pieces makes no difference to the signs (`at` is what it is at each piece)."""

    def __init__(
        self,
        kind: str,
        *,
        node: str | None = None,
        rank: int | None = None,
        year: int | None = None,
        source: str | None = None,
        extra: Sequence[Recogniser] = (),
        booted_at: float | None = None,
        utc_offset_s: float = 0.0,
        hosts: Iterable[str] = (),
        whole: bool = False,
    ) -> None:
        if kind not in (KERNEL, JOB):
            raise ValueError(f"kind of log {kind!r}: {KERNEL} or {JOB}")
        own = kernel_recognisers() if kind == KERNEL else [*job_recognisers(), *kernel_in_job_recognisers()]
        self._recognisers: list[Recogniser] = [*own, *extra]
        self._scanner = Scanner(trigger for one in self._recognisers for trigger in one.triggers)
        triggers = {trigger.decode() for one in self._recognisers for trigger in one.triggers}
        self._own_words = triggers if kind == KERNEL else frozenset()
        self._samplers = [one for one in self._recognisers if getattr(one, "frequent", ())]
        origin = source or ("kernel" if kind == KERNEL else "job_log")
        clock = Clock(year, booted_at, utc_offset_s)
        self._prefixes = Prefixes(kind, origin, clock, node, rank, frozenset(hosts))
        self._bursts = Bursts(whole)
        self.failures: dict[str, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._sampler = Sampler(literal for one in self._samplers for literal in getattr(one, "frequent", ()))
        self._tail = b""  # the line that has not ended yet
        self._cut = False  # ... of which the bound is reached: the rest is dropped
        self._lines = 0
        self._last: Line | None = None  # of the frequent lines, where it was not in the sample

    def feed(self, data: bytes, at: float | None = None) -> list[Sign]:
        """The next bytes of the log; `at`: when they came, for lines without a time. No bytes: only time has passed."""
        signs: list[Sign] = []
        for start in range(0, len(data), _PIECE):
            signs += self._piece(data[start : start + _PIECE], at)
        return signs + self._bursts.tick(at)

    def close(self) -> list[Sign]:
        """The last line, and what recognisers and bursts still hold. The reader can then begin another log."""
        signs = self._read(self._tail, None)
        if self._last is not None:
            signs += self._signs_of(self._last, self._samplers, None)
        for recogniser in self._recognisers:
            for sign in self._asked(recogniser, None):
                signs += self._bursts.add(sign, None)
        self._begin()
        return signs + self._bursts.close()

    def _piece(self, data: bytes, at: float | None) -> list[Sign]:
        data = data.replace(b"\0", b"")
        if self._cut:
            data = data[first_end(data) :]
        data = self._tail + data
        end = last_end(data)
        self._cut = len(data) - end >= LINE_BYTES
        self._tail = data[end : end + LINE_BYTES]
        return self._read(data[:end], at)

    def _read(self, data: bytes, at: float | None) -> list[Sign]:
        """`data`: whole lines."""
        returns = b"\r" in data
        spans = self._scanner.spans(data, returns)
        sampled = dict(self._sampler.spans(data, returns)) if self._samplers else {}
        signs: list[Sign] = []
        counted = 0
        for start, end in sorted({**sampled, **spans}.items()):
            self._lines += data.count(b"\n", counted, start)
            counted = start
            line = self._prefixes.line(_clean(data[start:end]), self._lines + 1, at)
            signs += self._signs_of(line, self._recognisers if start in spans else self._samplers, at)
        self._lines += data.count(b"\n", counted)
        if self._samplers:
            self._keep_last(data, returns, spans.keys() | sampled.keys(), at)
        return signs

    def _keep_last(self, data: bytes, returns: bool, read: Set[int], at: float | None) -> None:
        span = self._sampler.last(data, returns)
        if span is None:
            return
        start, end = span
        if start in read:
            self._last = None
            return
        number = self._lines - data.count(b"\n", start) + 1
        self._last = self._prefixes.line(_clean(data[start:end]), number, at)

    def _signs_of(self, line: Line, recognisers: Sequence[Recogniser], at: float | None) -> list[Sign]:
        if self._own_words and self._only_quoted(line.text):
            return []
        found = [sign for recogniser in recognisers for sign in self._asked(recogniser, line)]
        if _NAMES_CGROUPS.match(line.text):
            found = [sign for sign in found if sign.code.startswith(OOM)]
        return [given for sign in found for given in self._bursts.add(sign, at)]

    def _only_quoted(self, text: str) -> bool:
        """The kernel quotes names that anybody may choose: a program's file can be called like an Xid."""
        quote = _QUOTE.search(text)
        return quote is not None and not any(word in text[: quote.start()] for word in self._own_words)

    def _asked(self, recogniser: Recogniser, line: Line | None) -> list[Sign]:
        """A failure of ours is counted and never becomes evidence."""
        try:
            return recogniser.close() if line is None else recogniser.read(line)
        except Exception:
            name = type(recogniser).__name__
            self.failures[name] = self.failures.get(name, 0) + 1
            return []


def read_lines(
    kind: str,
    lines: Iterable[str],
    *,
    node: str | None = None,
    rank: int | None = None,
    year: int | None = None,
    source: str | None = None,
    extra: Sequence[Recogniser] = (),
    booted_at: float | None = None,
    utc_offset_s: float = 0.0,
    hosts: Iterable[str] = (),
) -> list[Sign]:
    """The signs of a whole log, each burst one sign, in the order of their first lines."""
    reader = LogReader(
        kind,
        node=node,
        rank=rank,
        year=year,
        source=source,
        extra=extra,
        booted_at=booted_at,
        utc_offset_s=utc_offset_s,
        hosts=hosts,
        whole=True,
    )
    for line in lines:
        reader.feed(line.rstrip("\r\n").encode("utf-8", "replace") + b"\n")
    return reader.close()


def _clean(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    return _CONTROL.sub("", text)
