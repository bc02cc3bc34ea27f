"""Which shares stay on a node: those that the index on shared storage lists, and what is being saved.

The index is what counts, and rank 0 prunes it; so a share goes after its step has stopped counting, never before. What
touches the node's disk is done through `on_node`, which may have a time limit; what touches shared storage is not.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from worker_hooks.protocol import generations, trash
from worker_hooks.protocol.manifest import parse_folder
from worker_hooks.protocol.messages import MessageError
from worker_hooks.protocol.tiers import LOCAL, shelf
from worker_hooks.training.saving.retention import empty_trash

OnNode = Callable[[Callable[[], Any]], Any]


def follow_index(node: Path, run: Path, generation: int, on_node: OnNode = lambda act: act()) -> list[str]:
    """Remove from this run's folder on the node what is of no use any more. Called by one rank of the node.

    Raises NotNewest as soon as the token is somebody else's, OSError where the index cannot be read: nothing is
    removed then.
    """
    generations.check_token(run, generation)  # what looks like trash may be parts that the newer attempt reads
    shares = on_node(lambda: _shares(node))
    if not shares:
        return []
    try:
        counted = generations.accepted_folders(run, LOCAL)
    except MessageError as error:
        raise OSError(f"{run / generations.GENERATIONS}: {error}") from None
    listed = {folder.name for folder in generations.step_folders(shelf(run, LOCAL))}
    going = [share for share in shares if not _stays(share.name, shares[0].name, counted, listed, generation)]
    return _remove(going, run, generation, on_node)


def clear(node: Path, run: Path, generation: int, step: int, on_node: OnNode = lambda act: act()) -> None:
    """Remove all shares up to that step, and the folder if nothing else is in it. Raises like `follow_index`."""
    generations.check_token(run, generation)
    _remove([share for share in on_node(lambda: _shares(node)) if _step(share) <= step], run, generation, on_node)
    with suppress(OSError):
        on_node(node.rmdir)


def _shares(node: Path) -> list[Path]:
    """The highest first."""
    if not node.exists():
        return []
    empty_trash(node)
    return list(generations.step_folders(node))


def _remove(shares: Iterable[Path], run: Path, generation: int, on_node: OnNode) -> list[str]:
    removed = []
    for share in shares:
        generations.check_token(run, generation)
        if on_node(partial(trash.remove, share)):
            removed.append(share.name)
    return removed


def _step(share: Path) -> int:
    return (parse_folder(share.name) or (0, 0))[0]


def _stays(name: str, highest: str, counted: Collection[str], listed: Collection[str], generation: int) -> bool:
    """Saves take turns, so of this attempt's only the highest on this node can be in flight; one below that may still
    be waiting for its commit as long as the index has a folder of it."""
    place = parse_folder(name) or (0, 0)
    if name in counted or place[1] > generation:
        return True
    newest = max((parse_folder(other) or (0, 0) for other in counted), default=(0, 0))
    return place[1] == generation and place > newest and (name == highest or name in listed)
