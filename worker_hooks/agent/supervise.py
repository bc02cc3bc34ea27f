"""`relume run`: one agent per node. Starts the ranks, watches them, and ends them when the attempt is over.

The main thread only supervises: it waits for news, asks `decide`, and acts. Disks and networks are other threads'
business, so a hanging file system or controller delays no teardown. Ranks are started before any thread.
"""

import os
import pwd
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from worker_hooks.agent import attempt, leftovers, network
from worker_hooks.agent.collector import FenceWatch
from worker_hooks.agent.decide import Situation, Verdict, decide
from worker_hooks.agent.gpus import NvidiaSmi, look_aside
from worker_hooks.agent.launch import Launch, prepare
from worker_hooks.agent.machine import read_aside
from worker_hooks.agent.options import UsageError, parse_options
from worker_hooks.agent.output import OutputPump
from worker_hooks.agent.placement import PlacementError, read_placement, thread_count
from worker_hooks.agent.ranks import RankGroup, RankProcess
from worker_hooks.agent.remains import Remains, rank_settings
from worker_hooks.agent.run_folder import Control, FolderError, write_control
from worker_hooks.agent.sign_watch import SignWatch, job_log_reader
from worker_hooks.agent.state import AgentState
from worker_hooks.agent.telemetry import Telemetry
from worker_hooks.agent.wakeup import Wakeup
from worker_hooks.protocol import exit_codes
from worker_hooks.protocol.machine import MachineIdentity

WATCH_S = 0.5
TOGETHER_S = 0.25
ANSWERING_S = 3.0
FINISHED_FLUSH_S = 10.0
FAILED_FLUSH_S = 2.0
SIGNAL_FLUSH_S = 1.0
OUTPUT_S = 0.5
SIGNS_S = 1.0
REMAINS_S = 4.0
SIGNAL_REMAINS_S = 2.0


def main(argv: Sequence[str]) -> int:
    """Returns the exit code of docs/formats.md section 3."""
    say = _Log()
    try:
        options = parse_options(argv, os.environ)
        placement = read_placement(os.environ, socket.gethostname(), _user(), os.getpid())
        say.node = placement.node
        wakeup = Wakeup()
        return Agent(prepare(options, placement, wakeup.pause, say), wakeup, say).run()
    except attempt.ToldToEnd as error:
        say(str(error))
        return exit_codes.ENDED
    except (UsageError, PlacementError) as error:
        say(str(error))
        return exit_codes.USAGE
    except (attempt.AttemptError, network.NetworkError, FolderError) as error:
        say(str(error))
        return exit_codes.ATTEMPT_FAILED


@dataclass
class _Log:
    """Writes to the job's log; a log that cannot be written stops nothing."""

    node: str = ""

    def __call__(self, text: str) -> None:
        with suppress(OSError, ValueError):
            print(f"relume[{self.node}]: {text}" if self.node else f"relume: {text}", file=sys.stderr, flush=True)


def _user() -> str:
    """By the process, not by `USER`: a job carries the variables of the shell that submitted it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


# --- the agent --------------------------------------------------------------------------------------------------


class Agent:
    """One attempt on one node, from the first rank's start to the exit code."""

    def __init__(self, launch: Launch, wakeup: Wakeup, say: _Log) -> None:
        self._launch = launch
        self._wakeup = wakeup
        self._say = say
        self._group = RankGroup()
        self._lock = leftovers.lock_folder(launch.folder)
        self._listener = network.ProbeListener()
        self._state = AgentState(
            run_id=launch.run.name,
            generation=launch.generation.generation,
            placement=launch.placement,
            started_at=time.time(),
            folder=launch.folder,
            addresses=launch.addresses,
            probe_port=self._listener.port,
            group=self._group,
        )
        self._telemetry = Telemetry(launch, self._state, wakeup.wake, say)
        reader = job_log_reader(launch.placement.node, launch.generation.nodes)
        self._signs = SignWatch(reader, self._telemetry.sign, self._telemetry.event, say)
        self._smi = NvidiaSmi(launch.environ)
        self._fence = FenceWatch(launch.run, self._state.generation, self._telemetry.obey.supersede)
        self._stop_deadline: float | None = None
        self._told = Control()
        self._failed: list[int] = []

    def run(self) -> int:
        self._start_ranks()
        pump = OutputPump(self._group.ranks, self._signs.offer)
        self._start_threads(pump)
        verdict = self._watch()
        self._state.state = "ending"
        if verdict.exit_code != exit_codes.FINISHED:
            self._say(f"ending: {verdict.reason}")
        self._tear_down(verdict)
        pump.join(OUTPUT_S)
        for rank in self._failed:
            self._telemetry.event("rank_log", rank, tail=pump.tails[rank].text())
        self._signs.finish(SIGNS_S)
        self._tell_remains(verdict)
        if verdict.lingers:
            self._linger()
        self._finish(verdict)
        self._group.reap()
        assert verdict.exit_code is not None  # _watch returns no other verdict
        return verdict.exit_code

    # --- phases ---

    def _start_ranks(self) -> None:
        launch = self._launch
        extra = {
            "RELUME_RUN_DIR": str(launch.folder),
            "RELUME_CHECKPOINT_ROOT": str(launch.options.checkpoint_root),
            "OMP_NUM_THREADS": thread_count(launch.environ, launch.plan.local, len(os.sched_getaffinity(0))),
        }
        if launch.options.interface:
            extra |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), launch.options.interface)
        self._telemetry.event("agent_started")
        if launch.placement.leads:
            accepted = len(launch.generation.accepted)
            self._telemetry.event("generation_minted", accepted=accepted, world_size=launch.plan.world)
        for local_rank in range(launch.plan.local):
            rank = launch.plan.first + local_rank
            own = extra | rank_settings(launch.environ, launch.folder, rank)
            environ = attempt.rank_environment(
                launch.environ, launch.placement, launch.plan, launch.generation, local_rank, own
            )
            started = self._group.start(rank, launch.options.program, environ, time.time())
            if started.end is not None:
                self._say(f"{launch.options.program[0]} cannot be run (exit code {started.end.code})")
                self._said_end(started)
                break
            self._telemetry.event("rank_started", started.rank, pid=started.pid)

    def _start_threads(self, pump: OutputPump) -> None:
        pump.start()
        self._signs.start()
        self._state.state = "running"
        self._telemetry.start()
        read_aside(self._learn_machine)
        look_aside(self._launch.environ, self._learn_gpus, self._smi)
        self._fence.start()
        self._listener.start()

    def _watch(self) -> Verdict:
        """Until the attempt is over on this node."""
        while True:
            for rank in self._group.poll():
                self._said_end(rank, torn_down=self._told_with(rank))
            verdict = decide(self._situation())
            if verdict.exit_code is not None:
                return verdict
            self._wakeup.wait(WATCH_S)

    def _told_with(self, rank: RankProcess) -> bool:
        """Was this rank ended by the signal that Slurm sends to every process of a step? The agent's may come later."""
        if rank.end is None or rank.end.signal not in (signal.SIGTERM, signal.SIGINT):
            return False
        deadline = time.monotonic() + TOGETHER_S
        while self._wakeup.got_signal is None and time.monotonic() < deadline:
            self._wakeup.wait(TOGETHER_S)
        return self._wakeup.got_signal is not None

    def _situation(self) -> Situation:
        state = self._state
        if state.stop_reason is not None and self._stop_deadline is None:
            self._stop_deadline = time.monotonic() + self._launch.options.stop_grace_s
        self._tell_ranks()
        return Situation(
            running=len(self._group.running),
            ends=self._group.ends,
            node_count=self._launch.placement.node_count,
            got_signal=self._wakeup.got_signal,
            superseded_by=state.superseded_by,
            stop_reason=state.stop_reason,
            stop_time_over=self._stop_deadline is not None and time.monotonic() >= self._stop_deadline,
        )

    def _tear_down(self, verdict: Verdict) -> None:
        """A superseded attempt gets no grace: its ranks only do harm by now."""
        self._tell_ranks()
        superseded = verdict.exit_code == exit_codes.SUPERSEDED
        grace = 0.0 if superseded else self._launch.options.teardown_grace_s
        for rank in self._group.tear_down(grace, self._wakeup.wait):
            self._said_end(rank, torn_down=True)

    def _tell_remains(self, verdict: Verdict) -> None:
        """What a failed attempt's ranks left behind. One that Slurm ends has less time for it."""
        if verdict.exit_code in (exit_codes.FINISHED, exit_codes.SUPERSEDED):
            return
        node, telemetry = self._launch.placement.node, self._telemetry
        remains = Remains(self._launch.folder, node, telemetry.sign, telemetry.event, self._say)
        limit_s = REMAINS_S if self._wakeup.got_signal is None else SIGNAL_REMAINS_S
        remains.tell([rank.rank for rank in self._group.ranks], self._failed, limit_s)

    def _linger(self) -> None:
        """Stay for probes while the controller answers (the reason is in `decide`)."""
        deadline = time.monotonic() + self._launch.options.linger_s
        while time.monotonic() < deadline and self._telemetry.answered(ANSWERING_S):
            state = self._state
            if self._wakeup.got_signal is not None or state.superseded_by is not None or state.stop_reason is not None:
                return
            self._wakeup.wait(0.2)

    def _finish(self, verdict: Verdict) -> None:
        """Last records, last post, spool on disk; every wait is bounded."""
        if verdict.exit_code == exit_codes.FINISHED:
            steps = [slot.step for slot in self._state.slots() if slot is not None]
            self._telemetry.event("finished", step=max(steps, default=None))
        else:
            self._telemetry.event("stopped", reason=verdict.reason, exit_code=verdict.exit_code)
        self._state.state = "ended"
        delivered = self._telemetry.finish(self._flush_limit(verdict))
        self._fence.stop()
        self._listener.close()
        self._smi.end()
        if delivered:
            shutil.rmtree(self._launch.folder, ignore_errors=True)

    def _flush_limit(self, verdict: Verdict) -> float:
        if self._wakeup.got_signal is not None:
            return SIGNAL_FLUSH_S
        return FINISHED_FLUSH_S if verdict.exit_code == exit_codes.FINISHED else FAILED_FLUSH_S

    # --- small steps ---

    def _learn_machine(self, identity: MachineIdentity) -> None:
        self._state.machine = identity

    def _learn_gpus(self, uuids: tuple[str, ...]) -> None:
        self._state.gpus = uuids

    def _said_end(self, rank: RankProcess, torn_down: bool = False) -> None:
        assert rank.end is not None  # only called for ranks that ended
        data: dict[str, Any] = {"exit_code": rank.end.code, "signal": rank.end.signal}
        if torn_down:
            data["torn_down"] = True
        elif not rank.end.clean:
            self._failed.append(rank.rank)
            self._say(f"rank {rank.rank} ended: exit code {rank.end.code}, signal {rank.end.signal}")
        self._telemetry.event("rank_exited", rank.rank, urgent=True, **data)

    def _tell_ranks(self) -> None:
        """Only what is new. What cannot be written is tried again when the supervisor looks again."""
        control = self._state.control
        if control == self._told:
            return
        with suppress(OSError):
            write_control(self._launch.folder, control)
            self._told = control
