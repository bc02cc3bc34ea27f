"""The only place that constructs adapters: settings in, a Site out."""

import math
import os
import pwd
import secrets
import socket
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import structlog
from django.conf import settings

from controller import clock, policy_file
from controller.decision.policy import Policy
from controller.site import Site
from controller.slurm import reach
from controller.slurm.choose import Choice, Wanted, choose
from controller.slurm.cli import CliSlurm, TimeLimits
from controller.slurm.fake import FakeSlurm
from controller.slurm.port import SlurmPort
from controller.slurm.rights import Identities, Identity, find_out
from controller.slurm.run_as import RunAs
from controller.slurm.runner import Runner, slurm_env

log = structlog.get_logger()

FAKE = "fake:"
CHOOSE_AGAIN_S = 60.0
# Below the lease of a sweep (ledger.commit.LEASE_S): a hanging slurmctld must not cost it. What fails is tried again.
LIMITS = TimeLimits(batch=8.0, read=5.0, write=8.0)

_choices: dict[tuple[int, str, str], tuple[Choice, float]] = {}


def slurm_port() -> SlurmPort:
    return slurm_choice().adapter


def slurm_choice() -> Choice:
    """`SLURM_ADAPTER`, and why the adapter is the one it is. Kept by this process as long as it stands; one that could
    not be made for want of an answer is made again after a while."""
    key = (os.getpid(), settings.SLURM_ADAPTER, settings.SLURM_CONF)
    kept = _choices.get(key)
    if kept is None or kept[0].outdated or time.monotonic() >= kept[1]:
        choice = _choose()
        log.info("slurm_adapter", adapter=choice.name, reason=choice.reason)
        kept = _choices[key] = (choice, math.inf if choice.final else time.monotonic() + CHOOSE_AGAIN_S)
    return kept[0]


def _choose() -> Choice:
    adapter: str = settings.SLURM_ADAPTER
    if adapter.startswith(FAKE):
        fake = FakeSlurm(clock.utcnow, path=Path(adapter.removeprefix(FAKE)))
        return Choice(fake, "in-memory", f"SLURM_ADAPTER={adapter}: no Slurm at all (development only)")
    who = identities()
    reader, jobs, nodes = who.reader.runner, who.jobs.runner, who.nodes.runner
    commands = CliSlurm(clock.utcnow, reader, job_writer=jobs, node_writer=nodes, limits=LIMITS)
    return choose(cast(Wanted, adapter), commands)


def find_rights() -> dict[str, Any] | None:
    """What our identities may do in Slurm, asked now. None for the in-memory Slurm, which knows no rights."""
    if settings.SLURM_ADAPTER.startswith(FAKE):
        return None
    return find_out(identities(), LIMITS, clock.utcnow, own_conf=bool(settings.SLURM_CONF))


def identities() -> Identities:
    """Whom Slurm sees when something is read, when jobs are changed, and when nodes are."""
    login = pwd.getpwuid(os.geteuid()).pw_name
    environment = slurm_env(os.environ, settings.SLURM_CONF or None)

    def identity(run_as: RunAs | None) -> Identity:
        if run_as is None:
            return Identity(login, Runner(env=environment))
        return Identity(run_as.user, Runner(env=environment, run_as=run_as.argv), run_as)

    jobs, nodes = identity(settings.SLURM_JOB_RUN_AS), identity(settings.SLURM_NODE_RUN_AS)
    return Identities(login, reader=identity(None), jobs=jobs, nodes=nodes)


@lru_cache(maxsize=1)
def policy() -> Policy:
    """Read once a process: a changed policy file takes effect at the next start, for every process at once."""
    return policy_file.load(settings.RELUME_POLICY, settings.RELUME_MODE, settings.RELUME_KNOWLEDGE)


@lru_cache(maxsize=8)
def _process_owner(pid: int) -> str:
    """Names one process; not the one it was forked from."""
    return f"{socket.gethostname()}:{pid}:{secrets.token_hex(4)}"


def site() -> Site:
    return Site(
        port=slurm_port(),
        policy=policy(),
        clock=clock.now,
        probe=reach.probe,
        sleep=time.sleep,
        owner=_process_owner(os.getpid()),
        slurm_user=identities().jobs.user,
        cluster_name=settings.RELUME_CLUSTER,
    )
