"""What is settled before the first rank starts: run id, generation, rendezvous, node-local folder."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker_hooks.agent import attempt, network
from worker_hooks.agent.identity import Identity, user_config
from worker_hooks.agent.options import RunOptions
from worker_hooks.agent.placement import Placement, default_ranks
from worker_hooks.agent.run_folder import folder_name, make_run_folder, parent_folder
from worker_hooks.protocol.generations import run_folder
from worker_hooks.protocol.identity import own_run_id
from worker_hooks.protocol.manifest import Generation


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


def prepare(
    options: RunOptions, placement: Placement, pause: Callable[[float], bool], say: Callable[[str], None]
) -> Launch:
    """Raises AttemptError, ToldToEnd (as soon as `pause` gives False), NetworkError, FolderError."""
    environ = os.environ
    wait = attempt.Waiter(options.generation_timeout_s, pause)
    identity = attempt.find_identity(environ, say)
    run = run_folder(
        options.checkpoint_root, attempt.find_run_id(environ, identity, options.checkpoint_root, placement, wait)
    )
    if identity is None and not placement.under_slurm and own_run_id(environ) is None:
        say(f"outside of Slurm each start is a run of its own; to go on with this one: RELUME_RUN_ID={run.name}")
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
