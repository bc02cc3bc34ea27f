"""Progress and records to the agent: shared-memory slot, events file, loss record. Never raises into training.

Records are queued and written by a thread of its own; a full or broken disk costs records, which are counted, and
nothing else. Without an agent (no run folder) only the loss record is written.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker_hooks.protocol.losses import loss_record
from worker_hooks.protocol.manifest import losses_file_name
from worker_hooks.protocol.messages import encode_number
from worker_hooks.protocol.slots import FILE_NAME, SlotWriter
from worker_hooks.training.settings import Settings

FLUSH_S = 0.2
FLUSH_PATIENCE_S = 1.0
CLOSE_PATIENCE_S = 5.0
QUEUE_LIMIT = 100_000


class LineFile:
    """An append-only file of JSON lines, opened when first needed. Failures are counted, never raised."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: Any = None
        self.dropped = 0
        self.error: str | None = None

    def append(self, items: list[dict[str, Any]]) -> None:
        if not items:
            return
        try:
            if self._descriptor is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                # Unbuffered: what was handed over is the kernel's, and survives a SIGKILL of this process.
                self._descriptor = self._path.open("ab", buffering=0)
            data = b"".join(json.dumps(item, allow_nan=False).encode() + b"\n" for item in items)
            written = self._descriptor.write(data)
            if written != len(data):
                self._descriptor.write(b"\n")  # ends the torn line, so that the next one is whole
                raise OSError(f"{written} of {len(data)} bytes written")
        except (OSError, ValueError) as error:
            self.dropped += len(items)
            self.error = str(error)

    def close(self) -> None:
        if self._descriptor is not None:
            try:
                self._descriptor.close()
            except OSError as error:
                self.error = str(error)


class Telemetry:
    """One per rank. `on_control` is called on the writer thread with the agent's control file when it changed."""

    def __init__(self, settings: Settings, rank: int, generation: int) -> None:
        self.rank = rank
        self.dropped = 0
        self.control: dict[str, Any] = {}
        self._run_dir = settings.run_dir
        self._slot = self._quietly(self._open_slot, settings)
        self._events = LineFile(settings.run_dir / f"events-{rank}.jsonl") if settings.run_dir else None
        self._losses = LineFile(settings.run / "losses" / losses_file_name(rank, generation))
        self._queue: deque[dict[str, Any]] = deque(maxlen=QUEUE_LIMIT)
        self._points: deque[tuple[str, int, float, float]] = deque(maxlen=QUEUE_LIMIT)
        self._loss_lines: deque[tuple[int, str]] = deque(maxlen=QUEUE_LIMIT)
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="relume-telemetry", daemon=True)
        self._thread.start()

    # --- from the training thread: a few stores and an append each ------------------------------------------------

    def phase(self, name: str) -> None:
        self._quietly(lambda: self._slot and self._slot.phase(name))

    def start_step(self, step: int) -> None:
        self._quietly(lambda: self._slot and self._slot.start_step(step))

    def step(self, step: int) -> None:
        self._quietly(lambda: self._slot and self._slot.step(step))

    def record(self, kind: str, **body: Any) -> None:
        """A durable record of docs/formats.md section 5; `rank` is filled in where the kind carries one."""
        self._queue.append({"kind": kind, "at": time.time(), **body})

    def event(self, name: str, **data: Any) -> None:
        self.record("event", name=name, rank=self.rank, data=data)

    def metric(self, name: str, step: int, at: float, value: float) -> None:
        self._points.append((name, step, at, value))

    def loss(self, step: int, value: float) -> None:
        """This rank's own record, which the next attempt replays against."""
        self._loss_lines.append((step, value.hex()))

    # --- the writer thread --------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write everything queued so far, unless the writer thread is stuck in a write: nobody waits for that."""
        if self._writing.acquire(timeout=FLUSH_PATIENCE_S):
            try:
                self._quietly(self._write)
            finally:
                self._writing.release()

    def _write(self) -> None:
        records = _drain(self._queue)
        if self._events is not None:
            self._events.append(records + self._metrics())
        else:
            self._points.clear()
        self._losses.append([loss_record(*line) for line in _drain(self._loss_lines)])

    def close(self) -> None:
        """Flush and stop. The slot stays mapped until the process ends: the agent reads its last state."""
        self._stop.set()
        self._thread.join(timeout=CLOSE_PATIENCE_S)
        if self._thread.is_alive():
            self.dropped += len(self._queue) + len(self._points) + len(self._loss_lines)

    def failures(self) -> dict[str, Any]:
        """What was lost, for whoever asks."""
        files = [file for file in (self._events, self._losses) if file is not None]
        return {
            "dropped": self.dropped + sum(file.dropped for file in files),
            "error": next((file.error for file in files if file.error), None),
        }

    def _loop(self) -> None:
        while not self._stop.wait(FLUSH_S):
            self._quietly(lambda: self._slot and self._slot.beat())
            self._quietly(self._read_control)
            self.flush()
        self.flush()
        for file in (self._events, self._losses):
            if file is not None:
                file.close()

    def _read_control(self) -> None:
        if self._run_dir is None:
            return
        try:
            data = json.loads((self._run_dir / "control.json").read_bytes())
        except FileNotFoundError:
            return
        if isinstance(data, dict):
            self.control = data

    def _metrics(self) -> list[dict[str, Any]]:
        by_name: dict[str, list[tuple[int, float, float]]] = {}
        for name, step, at, value in _drain(self._points):
            by_name.setdefault(name, []).append((step, at, value))
        return [
            {
                "kind": "metrics",
                "at": points[-1][1],
                "rank": self.rank,
                "name": name,
                "steps": [step for step, _, _ in points],
                "times": [at for _, at, _ in points],
                "values": [encode_number(value) for _, _, value in points],
            }
            for name, points in by_name.items()
        ]

    def _open_slot(self, settings: Settings) -> SlotWriter | None:
        if settings.run_dir is None:
            return None
        return SlotWriter(settings.run_dir / FILE_NAME, settings.local_rank)

    def _quietly(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Whatever goes wrong in telemetry is counted and kept away from training."""
        try:
            return call(*arguments)
        except Exception:
            self.dropped += 1
            return None


def _drain(queue: "deque[Any]") -> list[Any]:
    items = []
    while queue:
        items.append(queue.popleft())
    return items
