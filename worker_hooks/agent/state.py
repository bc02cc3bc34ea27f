"""What the agent's threads share, and the message made of it."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from worker_hooks._version import __version__
from worker_hooks.agent.network import MAX_TARGETS, connect_outcome
from worker_hooks.agent.pace import PaceBook
from worker_hooks.agent.placement import Placement
from worker_hooks.agent.ranks import RankGroup, RankProcess
from worker_hooks.agent.run_folder import Control
from worker_hooks.protocol.answers import Instruction
from worker_hooks.protocol.machine import MachineIdentity
from worker_hooks.protocol.messages import AgentInfo, Message, RankState, Reader
from worker_hooks.protocol.pace import Pace
from worker_hooks.protocol.slots import FILE_NAME, Slot, read_slots

PROBE_LIMIT_S = 1.0
LEAST_INTERVAL_S = 1.0  # between saves, whatever the controller says


@dataclass
class AgentState:
    """Plain attributes, each written by one thread: `state` by the supervisor, the rest by whoever learns of it."""

    run_id: str
    generation: int
    placement: Placement
    started_at: float
    folder: Path
    addresses: dict[str, str]
    probe_port: int | None
    group: RankGroup
    state: str = "starting"
    superseded_by: int | None = None
    stop_reason: str | None = None
    save_id: str | None = None
    interval_s: float | None = None
    machine: MachineIdentity | None = None
    gpus: tuple[str, ...] = ()
    clock_offset_s: Callable[[], float | None] = lambda: None
    pace: PaceBook = field(default_factory=PaceBook)

    @property
    def control(self) -> Control:
        return Control(self.stop_reason, self.superseded_by is not None, self.save_id, self.interval_s)

    def message(self) -> Message:
        """The heartbeat part; records are added by who sends it."""
        return Message(
            run_id=self.run_id,
            generation=self.generation,
            node=self.placement.node,
            sent_at=time.time(),
            boot_id=boot_id(),
            job=self.placement.job,
            agent=AgentInfo(
                version=__version__,
                pid=os.getpid(),
                leader=self.placement.leads,
                state=self.state,
                started_at=self.started_at,
                addresses=self.addresses,
                probe_port=self.probe_port,
                clock_offset_s=self.clock_offset_s(),
                gpus=self.gpus,
            ),
            ranks=tuple(self._ranks()),
            machine=self.machine,
        )

    def slots(self) -> list[Slot | None]:
        """The ranks' slots; all None if the file cannot be read."""
        try:
            return read_slots(self.folder / FILE_NAME)
        except OSError:
            return [None] * len(self.group.ranks)

    def _ranks(self) -> list[RankState]:
        slots, now_ns = self.slots(), time.monotonic_ns()
        self.pace.look(slots, now_ns)
        return [
            _rank_state(rank, slots[rank.local_rank], self.pace.told(rank.local_rank, now_ns), now_ns)
            for rank in list(self.group.ranks)
        ]


def _rank_state(rank: RankProcess, slot: Slot | None, pace: Pace | None, now_ns: int) -> RankState:
    end = rank.end
    return RankState(
        rank=rank.rank,
        pid=rank.pid,
        state="running" if end is None else "exited",
        phase=slot.phase if slot else None,
        step=slot.step if slot else None,
        progress_age_s=round(slot.progress_age_s(now_ns), 3) if slot else None,
        beat_age_s=round(slot.beat_age_s(now_ns), 3) if slot else None,
        exit_code=end.code if end else None,
        signal=end.signal if end else None,
        pace=pace,
    )


def boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


@dataclass
class Obedience:
    """Carries out the controller's instructions. Called on the reporter's thread: nothing here waits."""

    state: AgentState
    record: Callable[[str, dict[str, object]], None]
    wake: Callable[[], None]
    say: Callable[[str], None]
    stacks: Callable[[str, tuple[int, ...]], None]
    _probed: set[str] = field(default_factory=set)
    _said: set[str] = field(default_factory=set)

    def __call__(self, instruction: Instruction) -> None:
        """Instructions may come again with every answer until their effect shows; unknown ones are said once."""
        try:
            self._obey(instruction)
        except ValueError as error:
            self._say_once(f"an instruction could not be read: {error}")

    def _obey(self, instruction: Instruction) -> None:
        body = Reader.of(instruction.body, instruction.kind)
        if instruction.kind == "stop":
            self.state.stop_reason = self.state.stop_reason or body.text("reason") or "no reason given"
            self.wake()
        elif instruction.kind == "superseded":
            self.supersede(body.integer("generation"))
        elif instruction.kind == "probe":
            self._probe(body)
        elif instruction.kind == "stacks":
            self.stacks(body.text("id", 128), integers(body, "ranks"))
        elif instruction.kind == "save":
            self._change(save_id=body.text("id", 64))
        elif instruction.kind == "interval":
            self._change(interval_s=max(body.number("seconds"), LEAST_INTERVAL_S))
        else:
            self._say_once(f"the controller's instruction {instruction.kind[:40]!r} is not known to this version")

    def _change(self, **values: object) -> None:
        """Something that the ranks should know; the supervisor hands it on."""
        for name, value in values.items():
            if getattr(self.state, name) != value:
                setattr(self.state, name, value)
                self.wake()

    def supersede(self, generation: int) -> None:
        if generation > self.state.generation:
            self.state.superseded_by = generation
            self.wake()

    def _probe(self, body: Reader) -> None:
        asked = body.text("id", 128)
        if asked in self._probed:
            return
        self._probed.add(asked)
        for target in body.readers("targets")[:MAX_TARGETS]:
            place = (target.text("node", 255), target.text("address", 255), target.integer("port", least=1))
            threading.Thread(target=self._connect, args=(asked, *place), name="relume-probe", daemon=True).start()

    def _connect(self, asked: str, node: str, address: str, port: int) -> None:
        outcome = connect_outcome(address, min(port, 65535), PROBE_LIMIT_S)
        self.record("probe", {"id": asked, "node": node, "address": address, "port": port, "outcome": outcome})

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)


def integers(body: Reader, key: str) -> tuple[int, ...]:
    """What is no number in it is left out."""
    return tuple(item for item in body.get(key, list) if isinstance(item, int) and not isinstance(item, bool))
