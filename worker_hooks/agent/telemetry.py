"""Everything that leaves the agent: collector, spool, reporter, what dead agents left; one thing to start and end."""

import threading
from collections.abc import Callable
from typing import Any

from worker_hooks.agent import leftovers
from worker_hooks.agent.collector import Collector
from worker_hooks.agent.identity import user_config
from worker_hooks.agent.launch import Launch
from worker_hooks.agent.registration import Registrar
from worker_hooks.agent.reporter import Reporter
from worker_hooks.agent.run_folder import EventTail
from worker_hooks.agent.sign_record import sign_draft
from worker_hooks.agent.spool import Spool
from worker_hooks.agent.stacks import StackReader
from worker_hooks.agent.state import AgentState, Obedience
from worker_hooks.signs.sign import Sign

DISK_S = 2.0
UNKNOWN_RUN_S = 1.0


class Telemetry:
    """`event` takes records from the start; `start` begins to write and send them; `finish` is called once, last."""

    def __init__(self, launch: Launch, state: AgentState, wake: Callable[[], None], say: Callable[[str], None]) -> None:
        self._launch = launch
        self._state = state
        self._say = say
        self._spools = launch.options.spool or launch.run / "spool"
        path = leftovers.spool_path(self._spools, launch.placement.node, state.generation)
        self._spool = Spool(path, leftovers.spool_header(state.message()))
        self._collector = Collector(
            spool=self._spool,
            tail=EventTail(launch.folder, dict(self._spool.tailed)),
            collected=self._hurry,
            say=say,
            first=self._find_leftovers,
            tidy=self._tidy_leftovers,
        )
        self.event = self._collector.event
        self._stacks = StackReader(state, self.sign, say, launch.environ)
        self.obey = Obedience(state, self._answer_probe, wake, say, self._stacks.ask)
        self._reporter = self._make_reporter()

    def start(self) -> None:
        self._collector.start()
        if self._reporter is not None:
            self._reporter.start()

    def sign(self, sign: Sign) -> None:
        """Never blocks. How far a job is waits for the next post, trouble does not."""
        draft = sign_draft(sign, self._launch.placement.node)
        self._collector.keep(draft, urgent=sign.layer != "progress")

    def answered(self, within_s: float) -> bool:
        """Did the controller answer in the last `within_s` seconds?"""
        return self._reporter is not None and self._reporter.answers(within_s)

    def finish(self, limit_s: float) -> bool:
        """Last records, last post (at most `limit_s`), spool on disk. True if the ranks' event files are done with."""
        self._stacks.end()
        collected = self._collector.finish(DISK_S)
        if self._reporter is not None:
            known = self._reporter.identity.registered
            self._reporter.finish(limit_s if known else min(limit_s, UNKNOWN_RUN_S))
        saved = self._close_spools()
        if self._spool.unacked:
            where = f"wait in {self._spool.path}" if saved else "are lost: the spool could not be written"
            self._say(f"{self._spool.unacked} records {where}")
        return collected and (saved or not self._spool.unacked)

    def _make_reporter(self) -> Reporter | None:
        identity, url, placement = self._launch.identity, self._launch.url, self._launch.placement
        if identity is None or url is None:
            return None
        config = user_config(self._launch.environ)
        job = placement.job
        registrar = Registrar(identity, url, config, placement.leads, self._say, job.slurm_job_id, job.cluster)
        reporter = Reporter(identity, self._spool, self._state.message, self.obey, self._say, registrar)
        self._state.clock_offset_s = lambda: reporter.clock.seconds
        return reporter

    def _answer_probe(self, kind: str, body: dict[str, Any]) -> None:
        self._collector.add(kind, body, urgent=True)

    def _hurry(self) -> None:
        if self._reporter is not None:
            self._reporter.hurry()

    def _find_leftovers(self) -> None:
        """On the collector's thread: it reads and writes the checkpoint root."""
        launch, generation = self._launch, self._state.generation
        node, run_id = launch.placement.node, self._state.run_id
        leftovers.harvest(launch.folder.parent, self._spools, run_id, node, generation, self._say)
        if self._reporter is not None:
            nodes = frozenset(launch.generation.nodes)
            self._reporter.replays += leftovers.find_replays(
                self._spools, generation, node, launch.placement.leads, nodes
            )

    def _tidy_leftovers(self) -> None:
        while self._reporter is not None and self._reporter.delivered:
            self._reporter.delivered.pop().spool.close()

    def _close_spools(self) -> bool:
        """Bounded: the process must end although a disk hangs. True if this agent's own spool is safe on disk."""
        done: list[bool] = []

        def close() -> None:
            done.append(self._spool.close())
            self._tidy_leftovers()
            for left in self._reporter.replays if self._reporter is not None else ():
                left.spool.close()

        closing = threading.Thread(target=close, name="relume-closing", daemon=True)
        closing.start()
        closing.join(DISK_S)
        return bool(done and done[0])
