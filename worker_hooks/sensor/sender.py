"""Posts to the controller, one at a time, on a thread of its own: at once when there are signs, else every round."""

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from worker_hooks.agent.pacing import ClockOffset, backoff_s, pace_s
from worker_hooks.agent.spool_file import Draft
from worker_hooks.agent.transport import HttpAnswer, TransportError, post_json
from worker_hooks.protocol.answers import decode_answer
from worker_hooks.protocol.messages import MAX_BODY_BYTES, MessageError, Record
from worker_hooks.protocol.sense import SENSE, SenseMessage, encode_sense
from worker_hooks.sensor.stream import Stream

POST_LIMIT_S = 3.0
LAST_POST_LIMIT_S = 1.0
REFUSED_WAIT_S = 30.0
BATCH_COUNT = 500


@dataclass
class Sender:
    """`message` makes the current message around the given records."""

    url: str
    token: str
    interval_s: float
    stream: Stream
    message: Callable[[tuple[Record, ...], float | None], SenseMessage]
    say: Callable[[str], None]
    clock: ClockOffset = field(default_factory=ClockOffset)
    _failures: int = 0
    _limit: int = 0  # the first message carries no record: its answer tells whether the stream is still ours
    _wake: threading.Event = field(default_factory=threading.Event)
    _ending: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._run, name="relume-sender", daemon=True).start()

    def hurry(self) -> None:
        self._wake.set()

    def finish(self, limit_s: float) -> None:
        """Let what is under way end, and send what waits, within `limit_s` seconds."""
        self._ending.set()
        self._wake.set()
        self._ended.wait(limit_s)

    def _run(self) -> None:
        while not self._ending.is_set():
            wait = self._guarded_turn()
            if self._failures:
                self._ending.wait(wait)
            elif self._wake.wait(wait):
                self._wake.clear()
        if self.stream.spool.unacked:
            self._guarded_turn()
        self._ended.set()

    def _guarded_turn(self) -> float:
        try:
            return self._turn()
        except Exception as error:  # the sensor outlives its own mistakes
            return self._failed(f"the sensor cannot send: {type(error).__name__}: {error}")

    def _turn(self) -> float:
        spool = self.stream.spool
        records = tuple(spool.batch(MAX_BODY_BYTES * 3 // 4, self._limit)) if self._limit else ()
        body = json.dumps(encode_sense(self.message(records, self.clock.seconds)), allow_nan=False).encode()
        sent_at, begun = time.time(), time.monotonic()
        limit_s = LAST_POST_LIMIT_S if self._ending.is_set() else POST_LIMIT_S
        try:
            answer = post_json(self.url, SENSE, self.token, body, limit_s)
        except TransportError as error:
            return self._failed(f"the controller does not answer: {error}")
        if answer.status == 200:
            return self._answered(answer.data, sent_at, sent_at + time.monotonic() - begun, records)
        if answer.status in (400, 413) and records and answer.blames_records:
            return self._rejected(answer, records)
        if answer.status in (400, 401, 403, 413):
            self._failed(f"the controller refuses this sensor ({answer.status}: {json.dumps(answer.data)[:300]})")
            return random.uniform(REFUSED_WAIT_S / 2, REFUSED_WAIT_S)
        return self._failed(f"the controller answered {answer.status}", answer.retry_after_s)

    def _answered(self, data: Any, sent_at: float, received_at: float, records: tuple[Record, ...]) -> float:
        try:
            answer = decode_answer(data)
        except MessageError as error:
            return self._failed(f"the controller's answer cannot be read: {error}")
        if self._failures:
            self.say("the controller answers again")
        self._failures = 0
        self.clock.add(sent_at, received_at, answer.server_time)
        if not self._limit and answer.acked > self.stream.loaded:
            self.say("the controller has records of this stream that were lost here: a new stream begins")
            self.stream.renew()
        else:
            self.stream.spool.ack(answer.acked)
        self._limit = BATCH_COUNT
        return 0.05 if self.stream.spool.unacked else max(self.interval_s, pace_s(answer.pace_s))

    def _rejected(self, answer: HttpAnswer, records: tuple[Record, ...]) -> float:
        """Halve the batch until the one bad record is found, and put a note in its place."""
        if len(records) > 1:
            self._limit = max(1, len(records) // 2)
            return 0.1
        why = json.dumps(answer.data)[:300]
        if records[0].body.get("name") == "set_aside":
            return self._failed(f"the controller rejects even the note in place of a record: {why}", REFUSED_WAIT_S)
        note = {"name": "set_aside", "rank": None, "data": {"reason": why}}
        self.stream.spool.replace(records[0].seq, Draft("event", time.time(), note))
        self.say(f"record {records[0].seq} was rejected and set aside: {why}")
        return 0.1

    def _failed(self, what: str, asked_s: float | None = None) -> float:
        if not self._failures:
            self.say(f"{what}; signs are kept")
        self._failures += 1
        return backoff_s(self._failures, random.uniform, asked_s)
