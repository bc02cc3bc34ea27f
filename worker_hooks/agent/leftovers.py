"""What dead agents left behind: unsent spools, event files that nobody read to the end, and what their ranks left.

An agent answers for its own node. The leading agent answers also for nodes that are no longer in the job.
A run folder is locked by its living agent; the lock goes with the process, so a free one belongs to the dead.
"""

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from worker_hooks.agent.remains import Remains, ranks_in
from worker_hooks.agent.reporter import Replay
from worker_hooks.agent.run_folder import EventTail
from worker_hooks.agent.sign_record import sign_draft
from worker_hooks.agent.spool import Spool
from worker_hooks.agent.spool_file import Draft, read_spool
from worker_hooks.protocol.messages import AgentInfo, JobRef, Message, MessageError, Reader

REMAINS_S = 4.0
_SPOOL_NAME = re.compile(r"(?P<node>.+)\.g(?P<generation>\d+)\.jsonl")


def spool_path(folder: Path, node: str, generation: int) -> Path:
    return folder / f"{node}.g{generation}.jsonl"


def spool_header(message: Message) -> dict[str, Any]:
    """What a successor needs to send the records of this agent in its name."""
    job, agent = message.job, message.agent
    return {
        "run_id": message.run_id,
        "generation": message.generation,
        "node": message.node,
        "boot_id": message.boot_id,
        "job": {name: getattr(job, name) for name in ("cluster", "slurm_job_id", "restart_count", "user", "nodes")},
        "agent": {name: getattr(agent, name) for name in ("version", "pid", "leader", "started_at")},
    }


def lock_folder(folder: Path) -> int | None:
    """Take the folder's lock; the descriptor holds it until the process ends. None if a living agent has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def harvest(parent: Path, spools: Path, run_id: str, node: str, generation: int, say: Callable[[str], None]) -> None:
    """Move the unread rest of this node's older event files into their spools, with the signs of what those ranks left
    behind, and remove those folders."""
    pattern = re.compile(re.escape(run_id) + r"\.g(\d+)\." + re.escape(node))
    for folder in _entries(parent):
        match = pattern.fullmatch(folder.name)
        if match is None or int(match[1]) >= generation:
            continue
        with _dead(folder) as dead:
            if dead and _harvest_folder(folder, spool_path(spools, node, int(match[1])), node, say):
                shutil.rmtree(folder, ignore_errors=True)


def find_replays(spools: Path, generation: int, node: str, leads: bool, nodes: frozenset[str]) -> list[Replay]:
    """Older generations' spools that this agent answers for, oldest first; one with nothing to send is removed."""
    replays = []
    for path in _entries(spools):
        match = _SPOOL_NAME.fullmatch(path.name)
        if match is None or int(match["generation"]) >= generation:
            continue
        if match["node"] == node or (leads and match["node"] not in nodes):
            replay = _replay(path)
            if replay is not None:
                replays.append(replay)
    return sorted(replays, key=lambda replay: (replay.message.generation, replay.message.node))


def _replay(path: Path) -> Replay | None:
    try:
        header = read_spool(path).header
        if header is None:
            return None
        replay = Replay(Spool(path, header), _message(Reader.of(header, path.name)))
    except (OSError, MessageError):
        return None  # unreadable now; it stays for the next attempt
    if not replay.spool.unacked:
        path.unlink(missing_ok=True)
        return None
    return replay


def _message(header: Reader) -> Message:
    job, agent = header.reader("job"), header.reader("agent")
    return Message(
        run_id=header.text("run_id"),
        generation=header.integer("generation", least=1),
        node=header.text("node"),
        sent_at=time.time(),
        boot_id=header.optional_text("boot_id"),
        job=JobRef(
            job.text("cluster"),
            job.text("slurm_job_id"),
            job.integer("restart_count"),
            job.text("user"),
            job.text("nodes", 65536),
        ),
        agent=AgentInfo(
            agent.text("version"), agent.integer("pid"), agent.boolean("leader"), "ended", agent.number("started_at")
        ),
    )


def _harvest_folder(folder: Path, path: Path, node: str, say: Callable[[str], None]) -> bool:
    """False leaves everything as it is. Without a spool file nothing says how far its agent had come."""
    try:
        header = read_spool(path).header
    except OSError:
        return False
    if header is None:
        return False
    spool = Spool(path, header)
    tail = EventTail(folder, dict(spool.tailed))
    while drafts := tail.read():
        spool.append(drafts, tail.offsets)
    spool.append(_remains(folder, node, say))
    return spool.close()


def _remains(folder: Path, node: str, say: Callable[[str], None]) -> list[Draft]:
    """Nobody knows any more which ranks failed: every error file is read. A sign that its agent had told before it died
    comes again just the same, and is one piece of evidence."""
    drafts: list[Draft] = []

    def report(name: str, rank: int | None = None, urgent: bool = False, **data: int) -> None:
        drafts.append(Draft("event", time.time(), {"name": name, "rank": rank, "data": data}))

    remains = Remains(folder, node, lambda sign: drafts.append(sign_draft(sign, node)), report, say)
    with suppress(OSError):
        ranks = ranks_in(folder)
        remains.tell(ranks, ranks, REMAINS_S)
    return drafts


@contextmanager
def _dead(folder: Path) -> Iterator[bool]:
    descriptor = None
    with suppress(OSError):
        descriptor = lock_folder(folder)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
