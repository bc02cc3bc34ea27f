"""`relume run`: one agent per node. Starts the ranks, watches them, and ends them when the attempt is over.

The main thread only supervises: it waits for news, asks `decide`, and acts. Disks and networks are other threads'
business, so a hanging file system or controller delays no teardown. Ranks are started before any thread.
"""

import getpass
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_hooks.agent import attempt, leftovers, network
from worker_hooks.agent.collector import Collector, FenceWatch
from worker_hooks.agent.decide import Situation, Verdict, decide
from worker_hooks.agent.identity import Identity, user_config
from worker_hooks.agent.options import RunOptions, UsageError, parse_options
from worker_hooks.agent.output import OutputPump
from worker_hooks.agent.placement import Placement, PlacementError, default_ranks, read_placement, thread_count
from worker_hooks.agent.ranks import RankGroup, RankProcess
from worker_hooks.agent.registration import Registrar
from worker_hooks.agent.reporter import Reporter
from worker_hooks.agent.run_folder import (
    EventTail,
    FolderError,
    folder_name,
    make_run_folder,
    parent_folder,
    write_control,
)
from worker_hooks.agent.spool import Spool
from worker_hooks.agent.state import AgentState, Obedience
from worker_hooks.agent.wakeup import Wakeup
from worker_hooks.protocol import exit_codes
from worker_hooks.protocol.generations import run_folder
from worker_hooks.protocol.manifest import Generation

WATCH_S = 0.5
ANSWERING_S = 3.0
FINISHED_FLUSH_S = 10.0
FAILED_FLUSH_S = 2.0
SIGNAL_FLUSH_S = 1.0
DISK_S = 2.0


def main(argv: Sequence[str]) -> int:
    """Returns the exit code of docs/formats.md section 3."""
    say = _Log()
    try:
        options = parse_options(argv, os.environ)
        placement = read_placement(os.environ, socket.gethostname(), _user(), os.getpid())
        say.node = placement.node
        wakeup = Wakeup()
        return Agent(prepare(options, placement, wakeup, say), wakeup, say).run()
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
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


# --- before the ranks -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """Everything that is settled before the first rank starts."""

    options: RunOptions
    placement: Placement
    plan: attempt.RankPlan
    identity: Identity | None
    generation: Generation
    run: Path
    folder: Path
    addresses: dict[str, str]
    environ: Mapping[str, str]
    url: str | None


def prepare(options: RunOptions, placement: Placement, wakeup: Wakeup, say: _Log) -> Launch:
    """Run id, generation, rendezvous, node-local folder. Raises AttemptError, NetworkError, FolderError."""
    environ = os.environ
    wait = attempt.Waiter(options.generation_timeout_s, wakeup.pause)
    identity = attempt.find_identity(environ, say)
    run = run_folder(
        options.checkpoint_root, attempt.find_run_id(environ, identity, options.checkpoint_root, placement, wait)
    )
    plan = attempt.plan_ranks(options.ranks or default_ranks(environ), placement)
    url = (identity.url if identity else None) or user_config(environ).url
    addresses = _addresses(options, environ, url)
    if placement.leads:
        rendezvous = attempt.choose_rendezvous(placement, addresses["training"])
        generation = attempt.lead(run, placement, plan, rendezvous, wait)
    else:
        generation = attempt.follow(run, placement, plan, wait)
    parent = parent_folder(environ, os.geteuid())
    folder = make_run_folder(parent, folder_name(run.name, generation.generation, placement.node), plan.local)
    return Launch(options, placement, plan, identity, generation, run, folder, addresses, environ, url)


def _addresses(options: RunOptions, environ: Mapping[str, str], url: str | None) -> dict[str, str]:
    management = network.address_towards(url)
    if options.interface:
        return {"management": management, "training": network.interface_address(options.interface)}
    for name in (environ.get("GLOO_SOCKET_IFNAME"), environ.get("NCCL_SOCKET_IFNAME")):
        with suppress(network.NetworkError):
            if name:
                return {"management": management, "training": network.interface_address(name)}
    return {"management": management, "training": management}


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
        self._spools = launch.options.spool or launch.run / "spool"
        path = leftovers.spool_path(self._spools, launch.placement.node, self._state.generation)
        self._spool = Spool(path, leftovers.spool_header(self._state.message()))
        self._collector = Collector(
            spool=self._spool,
            tail=EventTail(launch.folder, dict(self._spool.tailed)),
            collected=self._hurry,
            say=say,
            first=self._find_leftovers,
            tidy=self._tidy_leftovers,
        )
        record = lambda kind, body: self._collector.add(kind, body, urgent=True)  # noqa: E731
        self._obey = Obedience(self._state, record, wakeup.wake, say)
        self._reporter = self._make_reporter()
        self._fence = FenceWatch(launch.run, self._state.generation, self._obey.supersede)
        self._stop_deadline: float | None = None

    def run(self) -> int:
        self._start_ranks()
        pump = OutputPump(self._group.ranks)
        self._start_threads(pump)
        verdict = self._watch()
        failed = [rank for rank in self._group.ranks if rank.end is not None and not rank.end.clean]
        self._state.state = "ending"
        if verdict.exit_code != exit_codes.FINISHED:
            self._say(f"ending: {verdict.reason}")
        self._tear_down(verdict)
        pump.join(DISK_S if not failed else 0.5)
        for rank in failed:
            self._collector.event("rank_log", rank.rank, tail=pump.tails[rank.rank].text())
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
        self._collector.event("agent_started")
        if launch.placement.leads:
            accepted = len(launch.generation.accepted)
            self._collector.event("generation_minted", accepted=accepted, world_size=launch.plan.world)
        for local_rank in range(launch.plan.local):
            environ = attempt.rank_environment(
                launch.environ, launch.placement, launch.plan, launch.generation, local_rank, extra
            )
            started = self._group.start(launch.plan.first + local_rank, launch.options.program, environ, time.time())
            if started.end is not None:
                self._say(f"{launch.options.program[0]} cannot be run (exit code {started.end.code})")
                self._said_end(started)
                break
            self._collector.event("rank_started", started.rank, pid=started.pid)

    def _start_threads(self, pump: OutputPump) -> None:
        pump.start()
        self._state.state = "running"
        self._collector.start()
        self._fence.start()
        self._listener.start()
        if self._reporter is not None:
            self._reporter.start()

    def _watch(self) -> Verdict:
        """Until the attempt is over on this node."""
        while True:
            for rank in self._group.poll():
                self._said_end(rank)
            verdict = decide(self._situation())
            if verdict.exit_code is not None:
                return verdict
            self._wakeup.wait(WATCH_S)

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

    def _linger(self) -> None:
        """Stay for probes while the controller answers (the reason is in `decide`)."""
        deadline = time.monotonic() + self._launch.options.linger_s
        while time.monotonic() < deadline and self._reporter is not None and self._reporter.answers(ANSWERING_S):
            state = self._state
            if self._wakeup.got_signal is not None or state.superseded_by is not None or state.stop_reason is not None:
                return
            self._wakeup.wait(0.2)

    def _finish(self, verdict: Verdict) -> None:
        """Last records, last post, spool on disk; every wait is bounded."""
        if verdict.exit_code == exit_codes.FINISHED:
            steps = [slot.step for slot in self._state.slots() if slot is not None]
            self._collector.event("finished", step=max(steps, default=None))
        else:
            self._collector.event("stopped", reason=verdict.reason, exit_code=verdict.exit_code)
        self._state.state = "ended"
        collected = self._collector.finish(DISK_S)
        if self._reporter is not None:
            self._reporter.finish(self._flush_limit(verdict))
        self._fence.stop()
        self._listener.close()
        saved = self._close_spool()
        if self._spool.unacked:
            where = f"wait in {self._spool.path}" if saved else "are lost: the spool could not be written"
            self._say(f"{self._spool.unacked} records {where}")
        if collected:
            shutil.rmtree(self._launch.folder, ignore_errors=True)

    def _flush_limit(self, verdict: Verdict) -> float:
        unknown = self._reporter is not None and not self._reporter.identity.registered
        if self._wakeup.got_signal is not None or unknown:
            return SIGNAL_FLUSH_S
        return FINISHED_FLUSH_S if verdict.exit_code == exit_codes.FINISHED else FAILED_FLUSH_S

    # --- small steps ---

    def _make_reporter(self) -> Reporter | None:
        identity, url, placement = self._launch.identity, self._launch.url, self._launch.placement
        if identity is None or url is None:
            return None
        config = user_config(self._launch.environ)
        job = placement.job
        registrar = Registrar(identity, url, config, placement.leads, self._say, job.slurm_job_id, job.cluster)
        reporter = Reporter(identity, self._spool, self._state.message, self._obey, self._say, registrar)
        self._state.clock_offset_s = lambda: reporter.clock.seconds
        return reporter

    def _find_leftovers(self) -> None:
        """On the collector's thread: it reads and writes the checkpoint root."""
        launch, generation = self._launch, self._state.generation
        node, run_id = launch.placement.node, self._state.run_id
        leftovers.harvest(launch.folder.parent, self._spools, run_id, node, generation)
        if self._reporter is not None:
            nodes = frozenset(launch.generation.nodes)
            self._reporter.replays += leftovers.find_replays(
                self._spools, generation, node, launch.placement.leads, nodes
            )

    def _tidy_leftovers(self) -> None:
        while self._reporter is not None and self._reporter.delivered:
            self._reporter.delivered.pop().spool.close()

    def _said_end(self, rank: RankProcess, torn_down: bool = False) -> None:
        assert rank.end is not None  # only called for ranks that ended
        data: dict[str, Any] = {"exit_code": rank.end.code, "signal": rank.end.signal}
        if torn_down:
            data["torn_down"] = True
        elif not rank.end.clean:
            self._say(f"rank {rank.rank} ended: exit code {rank.end.code}, signal {rank.end.signal}")
        self._collector.event("rank_exited", rank.rank, urgent=True, **data)

    def _tell_ranks(self) -> None:
        with suppress(OSError):
            write_control(self._launch.folder, self._state.stop_reason, self._state.superseded_by is not None)

    def _hurry(self) -> None:
        if self._reporter is not None:
            self._reporter.hurry()

    def _close_spool(self) -> bool:
        """Bounded: the process must end although a disk hangs."""
        done: list[bool] = []

        def close() -> None:
            done.append(self._spool.close())
            self._tidy_leftovers()
            for left in self._reporter.replays if self._reporter is not None else ():
                left.spool.close()

        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        closing.join(DISK_S)
        return bool(done and done[0])
