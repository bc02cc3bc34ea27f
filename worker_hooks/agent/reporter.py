"""Posts to the controller, one at a time, on a thread of its own. Nothing here can hold up a rank.

One message a second carries the state of every local rank and the oldest unacked records; the answer's pace says when
the next is due. While the controller is away the thread backs off and records wait in the spool. Spools that dead
agents left are sent in between, under the generation they belong to.
"""

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from worker_hooks.agent.identity import Identity
from worker_hooks.agent.pacing import ClockOffset, backoff_s, pace_s
from worker_hooks.agent.registration import Registrar
from worker_hooks.agent.spool import Spool
from worker_hooks.agent.spool_file import Draft
from worker_hooks.agent.transport import HttpAnswer, TransportError, post_json
from worker_hooks.protocol.answers import Answer, Instruction, decode_answer
from worker_hooks.protocol.messages import MAX_BODY_BYTES, Message, MessageError, encode_message

POST_LIMIT_S = 3.0
REFUSED_WAIT_S = 30.0
UNKNOWN_WAIT_S = 5.0
BATCH_BYTES = MAX_BODY_BYTES * 3 // 4
BATCH_COUNT = 2000
INGEST = "/api/v1/ingest"


@dataclass
class Replay:
    """The spool of a dead agent and the message its records travel in."""

    spool: Spool
    message: Message


@dataclass
class Reporter:
    """`snapshot` gives the current message without records; `obey` gets every instruction; `say` writes to the log."""

    identity: Identity
    spool: Spool
    snapshot: Callable[[], Message]
    obey: Callable[[Instruction], None]
    say: Callable[[str], None]
    registrar: Registrar
    replays: list[Replay] = field(default_factory=list)
    delivered: list[Replay] = field(default_factory=list)
    clock: ClockOffset = field(default_factory=ClockOffset)
    last_success: float | None = None
    _failures: int = 0
    _limit_count: int = BATCH_COUNT
    _refusals_said: set[int] = field(default_factory=set)
    _wake: threading.Event = field(default_factory=threading.Event)
    _ending: threading.Event = field(default_factory=threading.Event)
    _said_all: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._run, name="relume-reporter", daemon=True).start()

    def hurry(self) -> None:
        """Post now rather than at the next second, unless the controller does not answer at present."""
        self._wake.set()

    def answers(self, within_s: float) -> bool:
        """Did the controller answer in the last `within_s` seconds?"""
        return self.last_success is not None and time.monotonic() - self.last_success <= within_s

    def finish(self, limit_s: float) -> bool:
        """Send what is left, at most for `limit_s` seconds; True if the controller has everything. Call it last."""
        self._ending.set()
        self._wake.set()
        return self._said_all.wait(limit_s)

    def _run(self) -> None:
        while not self._said_all.is_set():
            wait = self._guarded_turn()
            if self._ending.is_set():
                wait = min(wait, 0.2)
            if self._failures and not self._ending.is_set():
                self._ending.wait(wait)
            elif self._wake.wait(wait):
                self._wake.clear()

    def _guarded_turn(self) -> float:
        """Telemetry must outlive its own mistakes: an error nobody foresaw is said, and the next turn comes later."""
        try:
            return self._turn()
        except Exception as error:
            return self._failed(f"telemetry failed: {type(error).__name__}: {error}")

    def _turn(self) -> float:
        """One exchange; returns the seconds until the next one."""
        if not self.registrar.ready():
            return self.registrar.wait_s
        ending = self._ending.is_set()
        wait, answered = self._send(self.spool, self.snapshot())
        if answered and ending and not self.spool.unacked:
            self._said_all.set()
        if answered and not ending and self.replays:
            self._send_replay(self.replays[0])
        return wait

    def _send_replay(self, left: Replay) -> None:
        if not left.spool.unacked:
            self.replays.remove(left)
            self.delivered.append(left)
            return
        self._send(left.spool, replace(left.message, sent_at=time.time()))

    def _send(self, spool: Spool, message: Message) -> tuple[float, bool]:
        """Post one message with the spool's oldest records; returns (seconds to wait, answered)."""
        records = tuple(spool.batch(BATCH_BYTES, self._limit_count))
        body = json.dumps(encode_message(replace(message, records=records)), allow_nan=False).encode()
        sent_at, begun = time.time(), time.monotonic()
        try:
            answer = post_json(self.registrar.url, INGEST, self.identity.token, body, POST_LIMIT_S)
        except TransportError as error:
            return self._failed(f"the controller does not answer: {error}"), False
        took = time.monotonic() - begun
        if answer.status in (200, 409):
            return self._answered(answer.data, spool, sent_at, sent_at + took)
        if answer.status == 400 or answer.status == 413:
            return self._rejected(answer, spool, [record.seq for record in records]), False
        if answer.status in (401, 403):
            return self._refused(answer), False
        return self._failed(f"the controller answered {answer.status}", answer.retry_after_s), False

    def _answered(self, data: Any, spool: Spool, sent_at: float, received_at: float) -> tuple[float, bool]:
        try:
            answer = decode_answer(data)
        except MessageError as error:
            return self._failed(f"the controller's answer cannot be read: {error}"), False
        if self._failures:
            self.say(f"the controller answers again; {spool.unacked} records are waiting")
        self._failures, self._limit_count = 0, BATCH_COUNT
        self._refusals_said.clear()
        self.last_success = time.monotonic()
        self.clock.add(sent_at, received_at, answer.server_time)
        spool.ack(answer.acked)
        self._instruct(answer)
        return pace_s(answer.pace_s), True

    def _instruct(self, answer: Answer) -> None:
        for instruction in answer.instructions:
            self.obey(instruction)
        if answer.checkpoint_interval_s is not None:
            self.obey(Instruction("interval", {"seconds": answer.checkpoint_interval_s}))

    def _failed(self, what: str, asked_s: float | None = None) -> float:
        if not self._failures:
            self.say(f"{what}; records are kept in {self.spool.path.parent}")
        self._failures += 1
        return backoff_s(self._failures, random.uniform, asked_s)

    def _refused(self, answer: HttpAnswer) -> float:
        """401, 403: not a matter of trying harder. Look again now and then: an administrator may put it right."""
        if answer.status not in self._refusals_said:
            self._refusals_said.add(answer.status)
            self.say(f"the controller refuses this run's token ({answer.status}: {_detail(answer.data)})")
        self._failures += 1
        if answer.status == 401:
            self.registrar.doubt()
            return random.uniform(1.0, UNKNOWN_WAIT_S)
        return random.uniform(UNKNOWN_WAIT_S, REFUSED_WAIT_S)

    def _rejected(self, answer: HttpAnswer, spool: Spool, seqs: list[int]) -> float:
        """400, 413: halve the batch until the one bad record is found, and put a note in its place."""
        if not seqs or not answer.blames_records:
            return self._failed(f"the controller rejects this agent's messages: {_detail(answer.data)}", REFUSED_WAIT_S)
        if len(seqs) > 1:
            self._limit_count = max(1, len(seqs) // 2)
            return 0.1
        note = {"name": "set_aside", "rank": None, "data": {"reason": _detail(answer.data)}}
        refused = spool.replace(seqs[0], Draft("event", time.time(), note))
        self.say(f"record {seqs[0]} was rejected and set aside: {_detail(answer.data)}: {str(refused)[:500]}")
        if refused is not None and refused.body.get("name") == "set_aside":
            return self._failed("the controller rejects even the note in place of a record", REFUSED_WAIT_S)
        return 0.1


def _detail(data: Any) -> str:
    return json.dumps(data)[:300]
