"""Signs in what the ranks print, read on a thread of its own from copies that the output's pump hands over.

The pump waits for nobody: copies that do not fit into the queue are skipped and counted, and so are signs beyond what
one rank may send in a minute. A failure here is said once in the job's log; it costs signs, nothing else.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from worker_hooks.signs.log import JOB, LogReader
from worker_hooks.signs.sign import Sign

QUEUE_BYTES = 8 << 20
GATHER_S = 0.1  # output is read in pieces of that long: a rank that prints a lot costs no more wake-ups
TICK_S = 1.0
MINUTE_S = 60.0
MOST_SIGNS = 120  # of one rank in a minute
MOST_OF_A_CODE = 20


class Stream(NamedTuple):
    """`target`: 1 or 2, the descriptor of the job's log that it goes to."""

    rank: int
    target: int


class Copy(NamedTuple):
    stream: Stream
    at: float
    data: bytes


class Report(Protocol):
    """`Telemetry.event`."""

    def __call__(self, name: str, rank: int | None = None, urgent: bool = False, **data: int) -> None: ...


class CopyQueue:
    """Bounded in bytes. `offer` never waits for a reader."""

    def __init__(self, limit: int = QUEUE_BYTES) -> None:
        self.news = threading.Event()
        self._limit = limit
        self._lock = threading.Lock()
        self._copies: deque[Copy] = deque()
        self._bytes = 0
        self._skipped: Counter[int] = Counter()
        self._torn: set[Stream] = set()

    def offer(self, stream: Stream, data: bytes, at: float) -> None:
        with self._lock:
            if self._bytes + len(data) > self._limit:
                self._skipped[stream.rank] += len(data)
                self._torn.add(stream)
                return
            if stream in self._torn:  # what was skipped must not join two halves of lines
                self._torn.discard(stream)
                data = b"\n" + data
            self._copies.append(Copy(stream, at, data))
            self._bytes += len(data)
        self.news.set()

    def take(self) -> list[Copy]:
        """Everything that is there."""
        self.news.clear()
        with self._lock:
            copies, self._copies, self._bytes = list(self._copies), deque(), 0
        return copies

    def take_skipped(self) -> Counter[int]:
        """Bytes by rank, since the last call."""
        with self._lock:
            skipped, self._skipped = self._skipped, Counter()
        return skipped

    def shut(self) -> None:
        """Nobody reads any more: nothing is kept."""
        with self._lock:
            self._limit, self._bytes = -1, 0
            self._copies.clear()


class Allowance:
    """What the ranks may still send in this minute; one code does not use up what the others need."""

    def __init__(self) -> None:
        self.left_out: Counter[int] = Counter()
        self._sent: Counter[int] = Counter()
        self._of_code: Counter[tuple[int, str]] = Counter()

    def admits(self, rank: int, sign: Sign) -> bool:
        if self._sent[rank] >= MOST_SIGNS or self._of_code[rank, sign.code] >= MOST_OF_A_CODE:
            self.left_out[rank] += sign.count
            return False
        self._sent[rank] += 1
        self._of_code[rank, sign.code] += 1
        return True


class SignWatch:
    """`reader`: makes the reader of a rank's stream; `give` gets each sign, on this thread; `report` says what was left
    out, once a minute at most for each rank."""

    def __init__(
        self,
        reader: Callable[[int], LogReader],
        give: Callable[[Sign], None],
        report: Report,
        say: Callable[[str], None],
        queue: CopyQueue | None = None,
    ) -> None:
        self._make = reader
        self._give = give
        self._report = report
        self._say = say
        self._queue = queue or CopyQueue()
        self._readers: dict[Stream, LogReader] = {}
        self._allowance = Allowance()
        self._minute = self._ticked = time.monotonic()
        self._failing: set[str] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relume-signs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, rank: int, target: int, data: bytes) -> None:
        """For the thread that passes output through: a copy of what it has just read. Never waits."""
        self._queue.offer(Stream(rank, target), data, time.time())

    def finish(self, limit_s: float) -> None:
        """Read what was offered and close, at most for `limit_s` seconds: what is not read then is not told."""
        self._ending.set()
        self._queue.news.set()
        self._thread.join(limit_s)

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self._queue.news.wait(TICK_S)
                self._round()
                self._ending.wait(GATHER_S)
            self._round()
            for stream, reader in self._readers.items():
                self._pass_on(stream, reader, reader.close())
            self._tell_left_out()
        except Exception as error:  # training and its log go on without
            self._say(f"signs in the ranks' output are no longer read: {type(error).__name__}: {error}")
        finally:
            self._queue.shut()

    def _round(self) -> None:
        for copy in self._queue.take():  # one by one: what is found is told although the rest may take long
            reader = self._reader(copy.stream)
            self._pass_on(copy.stream, reader, reader.feed(copy.data, copy.at))
        now = time.monotonic()
        if now - self._ticked >= TICK_S:
            self._ticked = now
            self._tick(now)

    def _tick(self, now: float) -> None:
        for stream, reader in self._readers.items():
            self._pass_on(stream, reader, reader.feed(b"", time.time()))
        if now - self._minute >= MINUTE_S:
            self._minute = now
            self._tell_left_out()

    def _reader(self, stream: Stream) -> LogReader:
        if stream not in self._readers:
            self._readers[stream] = self._make(stream.rank)
        return self._readers[stream]

    def _pass_on(self, stream: Stream, reader: LogReader, signs: Iterable[Sign]) -> None:
        for sign in signs:
            if self._allowance.admits(stream.rank, sign):
                self._give(sign)
        for name in reader.failures.keys() - self._failing:
            self._failing.add(name)
            self._say(f"{name} failed on a line of rank {stream.rank}: such signs may be missing")

    def _tell_left_out(self) -> None:
        signs, skipped = self._allowance.left_out, self._queue.take_skipped()
        self._allowance = Allowance()
        for rank in sorted(signs.keys() | skipped.keys()):
            self._report("signs_left_out", rank, signs=signs[rank], unread_bytes=skipped[rank])


def job_log_reader(node: str, nodes: Iterable[str]) -> Callable[[int], LogReader]:
    """Makes the reader of what a rank on `node` prints. `nodes`: the job's."""
    offset_s, hosts = time.localtime().tm_gmtoff, tuple(nodes)
    return lambda rank: LogReader(JOB, node=node, rank=rank, utc_offset_s=offset_s, hosts=hosts)
