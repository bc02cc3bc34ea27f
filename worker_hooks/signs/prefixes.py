"""What launchers, loggers and the kernel put in front of a line: taken off, in any order, and read.

Nothing here judges: a prefix that only looks like one stays in the text.
"""

import re

from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.times import ABSOLUTE, CLOCK, LOCAL, UPTIME, Clock, Stamp, read_stamp

_ROUNDS = 10  # a line with more prefixes than that is no line of ours

_NAME = r"[A-Za-z][\w-]{0,62}(?:\.[\w-]{1,62}){0,6}"
# A name with a number, as nodes have: `gn07`, `ip-10-0-3-7`, `nid001234.cluster`. Not what software counts.
_HOST_LIKE = re.compile(
    r"(?!(?:rank|local_rank|step|epoch|iter|iteration|batch|layer|stage|worker|process|thread|task|python|pip|cuda|cudnn|"
    r"mlx\d_|mlx|irdma|efa_|nvme|eth|ens|eno|enp|ib|bond|sd[a-z]|md|dm|gpu_|slurmstepd|slurmd|srun|version|v|nccl|torch|fp|"
    r"bf|int|float|level|phase|shard|part|utf|http|sha|md5|libcuda|lib)[-_]?\d)(?!(?:slurm|libnccl|nvidia-)[\w-]*)"
    r"(?=[\w.-]*\d)(?P<host>" + _NAME + r")(?![\w.:/\\-])"
)
_NCCL = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,252}):\d+:\d+ \[(?P<device>\d+)\] ")
_HOST_COLON = re.compile(r"(?P<host>" + _NAME + r"): +(?=\S)")
# With a process number: `EDAC MC0: ` and `pcieport 0000:5d:00.0: ` are the kernel's own words.
_SYSLOG = re.compile(r" ?(?P<host>[A-Za-z0-9][\w.-]{0,252}) (?P<program>[\w./@-]{1,64})\[\d+\]: ")
_KERNEL = re.compile(r" ?(?:(?P<host>[A-Za-z0-9][\w.-]{0,252}) )?kernel: ")
_LEVEL = re.compile(
    r"<\d{1,3}>|(?:kern|user|daemon|syslog|auth|local\d)(?: *: *|\.)(?:emerg|alert|crit|err|warn|warning|notice|info|"
    r"debug) *:? "
)
_CRI = re.compile(r"std(?:out|err) [FP] ")
_BRACKET_RANK = re.compile(r"\[(?:rank|Rank:?) ?:? ?(?P<rank>\d{1,6})\](?::|(?= )) ?")
_MPI = re.compile(r"\[(?:\d+|[\w.-]+),(?P<rank>\d{1,6})\](?:<std(?:out|err|diag)>:?|:) ?")
_DEFAULT = re.compile(r"\[[a-z]\w{0,30}?(?P<local>\d{1,3})\]:")
_LABEL = re.compile(r" {0,6}(?P<rank>\d{1,6}): (?=\S)")
_RAY = re.compile(r"\([\w:.<>-]{1,80} pid=\d+(?:, ip=[\d.a-fA-F:]+)?\) ")
_POD = re.compile(r"\[pod/[\w./-]{1,200}\] |[\w.-]{1,100} +\| ")
_NAMES_RANK = re.compile(r"(?:\[[^\[\]]{0,120}\] ?){0,2}?\[(?:[^\[\]]{0,160} )?Rank (?P<rank>\d{1,6})\]")
_JOB_START = frozenset("[(0123456789 ")


class Prefixes:
    """Makes lines of one log. `hosts`: names that surely are nodes; others are told by their look. `kind` kernel: the
    node that the reader was told stays, unless a line names another of `hosts`."""

    def __init__(
        self, kind: str, source: str, clock: Clock, node: str | None, rank: int | None, hosts: frozenset[str]
    ) -> None:
        self._kernel = kind == "kernel"
        self._source = source
        self._clock = clock
        self._node = node
        self._rank = rank
        self._hosts = hosts

    def line(self, raw: str, number: int, at: float | None) -> Line:
        found = _Found(raw)
        strip = self._strip_kernel if self._kernel else self._strip_job
        for _ in range(_ROUNDS):
            before = found.end
            strip(found)
            if found.end == before:
                break
        return self._made(found, number, at)

    def _made(self, found: "_Found", number: int, at: float | None) -> Line:
        text = found.raw[found.end :].strip()
        rank, local_rank = found.rank, found.local_rank
        if rank is None and not self._kernel:
            named = _NAMES_RANK.match(text)
            rank = int(named["rank"]) if named else None
        if rank is None and local_rank is None:
            rank = found.label
        return Line(
            raw=found.raw,
            text=text,
            number=number,
            source=self._source,
            at=self._at(found.stamps, at),
            node=self._node_of(found.host),
            rank=self._rank if rank is None else rank,
            local_rank=local_rank,
        )

    def _at(self, stamps: list[Stamp], at: float | None) -> float | None:
        for kind in (ABSOLUTE, LOCAL, UPTIME, CLOCK):
            for stamp in stamps:
                if stamp.kind == kind:
                    moment = self._clock.moment(stamp, at)
                    if moment is not None:
                        return moment
        return at

    def _node_of(self, host: str | None) -> str | None:
        if host is None or host == "localhost":
            return self._node
        short = host if host in self._hosts or host[0].isdigit() else host.split(".", 1)[0]
        told = self._node
        if told is not None and (short == told.split(".", 1)[0] or (self._kernel and short not in self._hosts)):
            return told
        return short

    # --- kernel logs ----------------------------------------------------------------------------------------------
    def _strip_kernel(self, found: "_Found") -> None:
        _spaces(found)
        stamp = _stamp(found)
        if stamp:
            _first(found, _KERNEL, _SYSLOG)
        else:
            _first(found, _LEVEL, _KERNEL)

    # --- job logs -------------------------------------------------------------------------------------------------
    def _strip_job(self, found: "_Found") -> None:
        if not found.raw:
            return
        if _stamp(found):
            _spaces(found)
            if not _take(found, _CRI):
                self._host_behind_time(found)
            return
        if found.raw[found.end : found.end + 1] in _JOB_START and self._bracketed(found):
            return
        nccl = _NCCL.match(found.raw, found.end)
        if nccl:  # stays in the text: NCCL's recognisers read it
            found.host = nccl["host"]
            found.local_rank = int(nccl["device"]) if found.local_rank is None else found.local_rank
            return
        if not self._host_in_front(found):
            _first(found, _POD, _KERNEL)

    def _bracketed(self, found: "_Found") -> bool:
        return _first(found, _BRACKET_RANK, _MPI, _DEFAULT, _LABEL, _RAY, _POD)

    def _host_behind_time(self, found: "_Found") -> bool:
        """`08:00:02 gn02 ...`, `Mar 05 02:11:40 gn31 srun[312]: ...`."""
        match = _HOST_LIKE.match(found.raw, found.end)
        if not match or found.raw[match.end() : match.end() + 1] != " ":
            return bool(_take(found, _KERNEL))
        found.host, found.end = match["host"], match.end() + 1
        _take(found, _KERNEL)
        return True

    def _host_in_front(self, found: "_Found") -> bool:
        """`gn53: text`: a name of a node, by knowledge or by its look."""
        match = _HOST_COLON.match(found.raw, found.end)
        if not match:
            return False
        host = match["host"]
        if host not in self._hosts and not _looks_like_host(host):
            return False
        found.host, found.end = host, match.end()
        return True


def _looks_like_host(name: str) -> bool:
    match = _HOST_LIKE.match(name + " ")
    return match is not None and match["host"] == name and not name.endswith(("Error", "Exception"))


class _Found:
    """What has been read of one line so far; `end`: where its text begins."""

    __slots__ = ("end", "host", "label", "local_rank", "rank", "raw", "stamps")

    def __init__(self, raw: str) -> None:
        self.raw = raw
        self.end = 0
        self.stamps: list[Stamp] = []
        self.host: str | None = None
        self.rank: int | None = None
        self.local_rank: int | None = None
        self.label: int | None = None  # srun's: a task, and a rank only where nothing else names one


def _stamp(found: _Found) -> bool:
    stamp = read_stamp(found.raw, found.end)
    if stamp is None:
        return False
    found.stamps.append(stamp)
    found.end = stamp.end
    _spaces(found)
    return True


def _spaces(found: _Found) -> None:
    raw, end = found.raw, found.end
    while raw[end : end + 1] in (" ", "\t"):
        end += 1
    found.end = end


def _first(found: _Found, *forms: re.Pattern[str]) -> bool:
    return any(_take(found, form) for form in forms)


def _take(found: _Found, form: re.Pattern[str]) -> bool:
    match = form.match(found.raw, found.end)
    if not match:
        return False
    found.end = match.end()
    groups = match.groupdict()
    if groups.get("host"):
        found.host = groups["host"]
    if groups.get("rank"):
        if form is _LABEL:
            found.label = int(groups["rank"])
        elif found.rank is None:
            found.rank = int(groups["rank"])
    if groups.get("local"):
        found.local_rank = int(groups["local"])
    return True
