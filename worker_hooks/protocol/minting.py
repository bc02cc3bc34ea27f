"""Taking the token: the next generation, with what counts when it begins (theory: `generations`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worker_hooks.protocol.committing import commit_complete
from worker_hooks.protocol.durable import create_file, encode_json, sync_folder
from worker_hooks.protocol.generations import GENERATIONS, counting, generation_path, newest, newest_number
from worker_hooks.protocol.manifest import Generation, encode_generation
from worker_hooks.protocol.tiers import LOCAL, SHARED

_MINT_ATTEMPTS = 100


def mint(
    run: Path,
    *,
    node: str,
    world_size: int,
    now: float,
    job: Mapping[str, Any] | None = None,
    nodes: Sequence[str] = (),
    rendezvous: Mapping[str, Any] | None = None,
) -> Generation:
    """Take the token: the next generation, durable when this returns.

    First commits what the superseded generation wrote completely, then lists what counts. Two agents that mint at the
    same time get two numbers; the higher one holds the token. Until this one's file is there, the superseded attempt
    may commit and prune: a list that is out of date by then is minted again, or it would name what is gone.
    """
    (run / GENERATIONS).mkdir(parents=True, exist_ok=True)
    sync_folder(run)
    before: Generation | None = None
    for _ in range(_MINT_ATTEMPTS):
        commit_complete(run, now=now)
        before = before or newest(run)
        made = Generation(
            run_id=run.name,
            generation=newest_number(run) + 1,
            created_at=now,
            node=node,
            world_size=world_size,
            job=dict(job or {}),
            nodes=tuple(nodes),
            rendezvous=dict(rendezvous or {}),
            accepted=tuple(counting(run, before, SHARED)),
            accepted_local=tuple(counting(run, before, LOCAL)),
        )
        if not create_file(generation_path(run, made.generation), encode_json(encode_generation(made))):
            before = None
        elif _up_to_date(made, run, before):
            return made
    raise OSError(f"{run / GENERATIONS}: another process took every number for {_MINT_ATTEMPTS} attempts")


def _up_to_date(made: Generation, run: Path, before: Generation | None) -> bool:
    now = (tuple(counting(run, before, SHARED)), tuple(counting(run, before, LOCAL)))
    return (made.accepted, made.accepted_local) == now
