"""A flood of Xid lines through one path of the kernel log: argv is `lines`, `pieces` or `records`, their number and a
folder. Prints the counts of the signs, and this process's peak memory (kB) after a tenth and at the end.

A process of its own, so that nothing that ran before hides what the flood takes.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from worker_hooks.sensor.kernel_log import File, Position
from worker_hooks.signs.log import KERNEL, LogReader, read_lines
from worker_hooks.signs.sign import Sign

PIECE_LINES = 5000
LINE_US = 20


def peak_kb() -> int:
    """Of this program alone: getrusage would also count the process that started it."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1])


class Flood:
    """The same fault again and again, by ever other processes on ever other channels; `tenth`: peak after the first."""

    def __init__(self, lines: int) -> None:
        self.lines = lines
        self.tenth = 0

    def texts(self) -> Iterator[tuple[int, str]]:
        for k in range(self.lines):
            if k == self.lines // 10:
                self.tenth = peak_kb()
            pid, channel = k % 30_000 + 1, k % 64
            yield k, f"NVRM: Xid (PCI:0000:1b:00): 31, pid={pid}, name=python3, Ch {channel:08x}, MMU Fault"

    def dated(self) -> Iterator[str]:
        for k, text in self.texts():
            yield f"[{k * LINE_US // 1_000_000:5d}.{k * LINE_US % 1_000_000:06d}] {text}"

    def by_lines(self, _: Path) -> list[Sign]:
        return read_lines(KERNEL, self.dated(), node="gn1")

    def by_pieces(self, _: Path) -> list[Sign]:
        reader, piece, signs = LogReader(KERNEL, node="gn1"), [], []
        for line in self.dated():
            piece.append(line)
            if len(piece) == PIECE_LINES:
                signs += reader.feed("\n".join([*piece, ""]).encode())
                piece.clear()
        return [*signs, *reader.feed("\n".join([*piece, ""]).encode()), *reader.close()]

    def by_records(self, folder: Path) -> list[Sign]:
        """As the sensor reads them from a file of kernel records that grows."""
        path = folder / "kmsg"
        path.touch()
        log, reader, signs = File(path, Position(), -1), LogReader(KERNEL, node="gn1", booted_at=0.0), []
        with path.open("w") as file:
            for k, text in self.texts():
                file.write(f"4,{k},{k * LINE_US},-;{text}\n")
                if (k + 1) % PIECE_LINES == 0 or k + 1 == self.lines:
                    file.flush()
                    signs += _turns(log, reader)
        return [*signs, *reader.close()]


def _turns(log: File, reader: LogReader) -> list[Sign]:
    signs: list[Sign] = []
    while True:
        signs += reader.feed(b"".join(record.line() for record in log.read()))
        if not log.more:
            return signs


def main() -> None:
    way, lines, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    flood = Flood(lines)
    ways = {"lines": flood.by_lines, "pieces": flood.by_pieces, "records": flood.by_records}
    signs = ways[way](folder)
    codes = sorted({sign.code for sign in signs})
    counts = [sign.count for sign in signs]
    print(json.dumps({"codes": codes, "counts": counts, "tenth_kb": flood.tenth, "peak_kb": peak_kb()}))


main()
