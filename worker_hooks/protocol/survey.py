"""What lies in a run's folder, as a person or a command sees it from outside: every checkpoint with its state.

Read-only, for running and dead runs alike. Nothing here raises for what it finds: broken JSON, a file where a folder
belongs or a folder that cannot be read becomes a problem with a name. The rules are those of `generations`; which
folder a resume takes is said as the next attempt would choose it, bytes unread.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker_hooks.protocol import generations
from worker_hooks.protocol.folder_state import Checkpoint, look, look_at_trash, said
from worker_hooks.protocol.leases import READERS, being_read
from worker_hooks.protocol.manifest import Generation, parse_folder
from worker_hooks.protocol.minting import understood
from worker_hooks.protocol.regular import open_regular
from worker_hooks.protocol.tiers import LOCAL, run_of, shelf
from worker_hooks.protocol.trash import TRASH

PRUNED = "pruned.jsonl"
LATEST = "latest"
_KNOWN = (generations.GENERATIONS, LATEST, LOCAL, "losses", "spool", READERS, PRUNED)


@dataclass(frozen=True)
class Choice:
    """Which folder a resume takes now, and why; None where there is none to take."""

    folder: str | None
    step: int | None
    why: str


@dataclass(frozen=True)
class Run:
    folder: Path
    newest: Generation | None
    generations: tuple[int, ...]
    checkpoints: tuple[Checkpoint, ...]
    choice: Choice
    latest: str | None
    others: tuple[str, ...]
    problems: tuple[str, ...]
    local: tuple[Checkpoint, ...] = ()


def is_run(folder: Path) -> bool:
    """It has generations or checkpoint folders of ours."""
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except OSError:
        return False
    return generations.GENERATIONS in names or any(parse_folder(name) for name in names)


def survey(run: Path) -> Run:
    """Everything in one run's folder, newest step first, trash last; `local` is the index of what lies on the nodes."""
    problems: list[str] = []
    try:
        names = sorted(entry.name for entry in os.scandir(run))
    except OSError as error:
        return Run(run, None, (), (), Choice(None, None, "it cannot be read"), None, (), (said(error),))
    numbers = tuple(_numbers(run))
    newest, token = _newest(run, problems)
    found = _checkpoints(run, names, token, problems)
    others = [name for name in names if not parse_folder(name) and name not in _KNOWN and not name.startswith(".")]
    latest, local = _latest(run, problems), _local(run, token, problems)
    return Run(
        run,
        newest,
        numbers,
        tuple(found),
        _choice(token, found, broken=newest is None and bool(token or numbers)),
        latest,
        tuple(others),
        (*problems, *_restarts(run, newest, found)),
        tuple(local),
    )


def inspect(folder: Path) -> Checkpoint:
    """One checkpoint folder by itself, judged by the generations beside it."""
    place = parse_folder(folder.name)
    if place is None:
        raise ValueError(f"{folder.name} is not the name of a checkpoint folder")
    _, token = _newest(run_of(folder), [])
    return look(folder, place, token, folder.name in _readers(folder.parent, []))


# --- the run ------------------------------------------------------------------------------------------------------


def _checkpoints(place: Path, names: list[str], newest: Generation | None, problems: list[str]) -> list[Checkpoint]:
    reading = _readers(place, problems)
    ordered = sorted(((step, name) for name in names if (step := parse_folder(name))), reverse=True)
    found = [look(place / name, step, newest, name in reading) for step, name in ordered]
    return found + [look_at_trash(place / name) for name in names if name.startswith(TRASH)]


def _local(run: Path, newest: Generation | None, problems: list[str]) -> list[Checkpoint]:
    place = shelf(run, LOCAL)
    try:
        names = sorted(entry.name for entry in os.scandir(place))
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(said(error))
        return []
    return _checkpoints(place, names, newest, problems)


def _newest(run: Path, problems: list[str]) -> tuple[Generation | None, Generation | None]:
    """The newest generation as it is written, and as the next attempt will understand it: a broken file has a stand-in,
    by which checkpoints are judged and none is removed. None: nobody knows."""
    try:
        newest = generations.newest(run)
    except (OSError, ValueError) as error:
        problems.append(f"the newest generation file cannot be read: {said(error)}")
        with suppress(OSError, ValueError):
            return None, understood(run)
        return None, None
    token = understood(run)
    if token == newest:
        return newest, newest
    problems.append(str(token and token.problem))
    return None, token


def _numbers(run: Path) -> list[int]:
    try:
        names = [entry.stem for entry in (run / generations.GENERATIONS).glob("*.json")]
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _readers(place: Path, problems: list[str]) -> set[str]:
    try:
        return being_read(place)
    except OSError as error:
        problems.append(said(error))
        return set()


def _latest(run: Path, problems: list[str]) -> str | None:
    try:
        with os.fdopen(open_regular(run / LATEST), "rb") as file:
            return file.read(200).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(said(error))
        return None


def _choice(token: Generation | None, found: list[Checkpoint], *, broken: bool) -> Choice:
    """As the next attempt does it: it first commits what the newest generation left complete, then takes the newest
    that counts and is whole. `broken`: nothing but a stand-in tells."""
    if token is None:
        return Choice(None, None, "the newest generation cannot be read" if broken else "no generation was minted")
    passed: list[str] = []
    for item in found:
        if item.state in ("committed", "complete"):
            why = "the newest that counts"
            if item.state == "complete":
                why = "complete; the next attempt commits it before it chooses"
            if broken:
                why += "; the newest generation file is broken or gone"
            if passed:
                why += "; walks past " + ", ".join(passed)
            return Choice(item.name, item.step, why)
        if item.counts:
            passed.append(f"{item.name} ({item.state})")
    lost = "; walks past " + ", ".join(passed) if passed else ""
    return Choice(None, None, f"nothing here counts and is whole{lost}")


def _restarts(run: Path, newest: Generation | None, found: list[Checkpoint]) -> Iterator[str]:
    """A generation that saved below a checkpoint that counted when it began did not start from it."""
    good = {item.name: item.step for item in found if item.state == "committed"}
    for number in sorted({item.generation for item in found if item.generation > 1}):
        try:
            accepted = generations.read_generation(run, number).accepted
        except (OSError, ValueError):
            continue
        base = max((good[name] for name in accepted if name in good), default=None)
        own = [item.step for item in found if item.generation == number and item.state != "trash"]
        if base is not None and own and min(own) < base:
            yield f"generation {number} saved step {min(own)} although step {base} counted: began from an older state"
