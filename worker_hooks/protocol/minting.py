"""Taking the token: the next generation, with what counts when it begins (theory: `generations`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worker_hooks.protocol.committing import commit_complete
from worker_hooks.protocol.durable import create_file, encode_json, sync_folder
from worker_hooks.protocol.generations import (
    GENERATIONS,
    counting,
    generation_path,
    newest,
    newest_number,
    read_generation,
    step_folders,
)
from worker_hooks.protocol.manifest import Broken, Generation, encode_generation, parse_folder, sealed
from worker_hooks.protocol.messages import MessageError
from worker_hooks.protocol.tiers import LOCAL, SHARED, TIERS, Tier, shelf

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
    may commit and prune: a list that is out of date by then is minted again, or it would name what is gone. A newest
    generation whose file is broken is superseded like any other (`stand_in`), and the new one says so in `problem`.
    """
    (run / GENERATIONS).mkdir(parents=True, exist_ok=True)
    sync_folder(run)
    before: Generation | None = None
    for _ in range(_MINT_ATTEMPTS):
        before = before or understood(run)
        if before is not None:
            commit_complete(run, now=now, token=before)
        made = Generation(
            run_id=run.name,
            generation=max(newest_number(run), before.generation if before else 0) + 1,
            created_at=now,
            node=node,
            world_size=world_size,
            job=dict(job or {}),
            nodes=tuple(nodes),
            rendezvous=dict(rendezvous or {}),
            accepted=tuple(counting(run, before, SHARED)),
            accepted_local=tuple(counting(run, before, LOCAL)),
            problem=before.problem if before is not None and not before.node else None,
        )
        if not create_file(generation_path(run, made.generation), encode_json(sealed(encode_generation(made)))):
            before = None
        elif _up_to_date(made, run, before):
            return made
    raise OSError(f"{run / GENERATIONS}: another process took every number for {_MINT_ATTEMPTS} attempts")


def understood(run: Path) -> Generation | None:
    """The newest generation as the next attempt takes it, None before the first. A file that is broken or gone has a
    stand-in: a folder of a generation is there only after its file was. Raises OSError, MessageError."""
    shelves = [shelf(run, tier) for tier in TIERS]
    places = [parse_folder(folder.name) for place in shelves for folder in step_folders(place)]
    seen = max((place[1] for place in places if place), default=0)
    number = newest_number(run)
    if seen > number:
        return stand_in(run, seen, f"{GENERATIONS}/{seen:06d}.json: gone, though a folder of it is there")
    try:
        return newest(run)
    except Broken as error:
        return stand_in(run, number, f"{GENERATIONS}/{error}")
    except (FileNotFoundError, IsADirectoryError) as error:
        return stand_in(run, number, f"{GENERATIONS}/{number:06d}.json: {error.strerror}")


def stand_in(run: Path, number: int, problem: str) -> Generation:
    """What can be known of generation `number`, the newest, without its file: it holds the token by its number. It
    accepted what the newest readable one before it accepts, and everything of the generations since.

    So what a superseded writer committed after that generation began counts too: it is complete and intact, and
    giving up good checkpoints for a bit that flipped in this file would be worse.
    """
    older = _readable_before(run, number)
    since = older.generation if older is not None else 0

    def accepted(tier: Tier, known: tuple[str, ...]) -> tuple[str, ...]:
        places = [(folder.name, parse_folder(folder.name)) for folder in step_folders(shelf(run, tier))]
        newer = [name for name, place in places if place is not None and since <= place[1] <= number]
        return tuple(dict.fromkeys([*newer, *known]))

    return Generation(
        run_id=run.name,
        generation=number,
        created_at=0.0,
        node="",
        world_size=1,
        accepted=accepted(SHARED, older.accepted if older else ()),
        accepted_local=accepted(LOCAL, older.accepted_local if older else ()),
        problem=problem,
    )


def _readable_before(run: Path, number: int) -> Generation | None:
    for older in range(min(number - 1, newest_number(run)), 0, -1):
        try:
            return read_generation(run, older)
        except (MessageError, FileNotFoundError, IsADirectoryError):
            continue
    return None


def _up_to_date(made: Generation, run: Path, before: Generation | None) -> bool:
    now = (tuple(counting(run, before, SHARED)), tuple(counting(run, before, LOCAL)))
    return (made.accepted, made.accepted_local) == now
