"""Which shares of a checkpoint lie on this node: told by their rank files, which the manifest names by digest."""

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from worker_hooks.protocol.durable import sync_folder
from worker_hooks.protocol.manifest import Manifest, RankRef, decode_rank_file, rank_file_name, rank_folder_name
from worker_hooks.protocol.regular import read_small
from worker_hooks.training.files.share_files import INDEX
from worker_hooks.training.tiers.share_stream import missing, rank_file_digest

BAD = ".bad"


@dataclass(frozen=True)
class Held:
    """`shares`: the ranks whose shares are here, as far as rank files and lengths tell. `problems`: what is wrong with
    a share that is here and does not count."""

    shares: list[int] = field(default_factory=list)
    problems: dict[int, str] = field(default_factory=dict)


def held(folder: Path, manifest: Manifest) -> Held:
    """`folder`: the checkpoint's on this node. A disk that does not answer holds nothing: there are other sources."""
    found = Held()
    for ref in manifest.ranks:
        try:
            problem = _problem(folder, ref)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problem = f"{ref.file}: {error}" if isinstance(error, ValueError) else str(error)
        if problem is None:
            found.shares.append(ref.rank)
        else:
            found.problems[ref.rank] = problem
    return found


def heads(folder: Path, rank: int) -> dict[str, str]:
    """The texts of a share that say what is in it: its rank file and its index, by name. Raises OSError, ValueError."""
    names = (rank_file_name(rank), f"{rank_folder_name(rank)}/{INDEX}")
    return {name: read_small(folder / name).decode() for name in names}


def set_aside(folder: Path, rank: int) -> None:
    """Never use that share again; its files stay for inspection. What cannot be renamed is found bad again."""
    files, share = folder / rank_file_name(rank), folder / rank_folder_name(rank)
    with suppress(OSError):
        files.rename(files.with_name(files.name + BAD))  # first: it is what makes the share count
        sync_folder(folder)
        shutil.rmtree(share.with_name(share.name + BAD), ignore_errors=True)
        share.rename(share.with_name(share.name + BAD))


def _problem(folder: Path, ref: RankRef) -> str | None:
    data = read_small(folder / ref.file)
    if rank_file_digest(data) != ref.digest:
        return f"{ref.file} does not match its digest"
    return missing(folder, decode_rank_file(json.loads(data)).files)
