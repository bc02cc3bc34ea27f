"""`relume checkpoints list|verify|diff|prune DIR`: a folder of checkpoints, offline. docs/checkpoints.md.

No torch, and nothing is ever unpickled. Exit codes: 0 good, 1 something is wrong or differs, 2 not understood or not
readable.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from worker_hooks.digests import DigestError
from worker_hooks.protocol.manifest import parse_folder

GOOD, BAD, UNREADABLE = 0, 1, 2
Json = dict[str, Any]

_DESCRIPTION = "Look at, verify, compare and tidy checkpoints on disk. DIR: a checkpoint root, a run or one checkpoint."


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    options = build_parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except BrokenPipeError:  # a pager that was closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GOOD
    except OSError as error:
        return _refuse(f"{error.filename or 'storage'}: {error.strerror}")
    except KeyboardInterrupt:
        return 130


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="relume checkpoints", description=_DESCRIPTION, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="list|verify|diff|prune")
    _add(commands, "list", _list, "what is there, in which state, and what a resume would take")
    verify = _add(commands, "verify", _verify, "read every byte and compare it with its digest")
    verify.add_argument("--all", action="store_true", help="also what does not count and what is quarantined")
    verify.add_argument("--limit", type=_rate, metavar="MB/S", help="read at most so many megabytes per second")
    diff = _add(commands, "diff", _diff, "what differs between two checkpoints", names=("A", "B"))
    diff.add_argument("--values", action="store_true", help="also read the tensors that differ: largest difference")
    prune = _add(commands, "prune", _prune, "remove old checkpoints; shows only what would go unless --yes")
    prune.add_argument("--keep", type=_count, required=True, metavar="N", help="the newest N stay (at least 1)")
    prune.add_argument("--yes", action="store_true", help="do it")
    prune.add_argument("--quarantined", action="store_true", help="quarantined ones go too")
    prune.add_argument("--force", metavar="REASON", help="although an attempt may be writing; the reason is recorded")
    return parser


def _add(commands: Any, name: str, run: Any, help_text: str, names: Sequence[str] = ("DIR",)) -> Any:
    parser = commands.add_parser(name, help=help_text, description=help_text, allow_abbrev=False)
    for place in names:
        parser.add_argument(place.lower(), type=Path, metavar=place)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(command=run)
    return parser


def _list(options: argparse.Namespace) -> int:
    from worker_hooks.cli import checkpoints_list
    from worker_hooks.cli.checkpoints_places import UnreadableDirectory

    try:
        found = checkpoints_list.listing(options.dir, time.time())
    except UnreadableDirectory as error:
        return _refuse(str(error))
    _show(options, found, checkpoints_list.lines(found))
    return GOOD


def _verify(options: argparse.Namespace) -> int:
    from worker_hooks.cli import checkpoints_verify
    from worker_hooks.cli.checkpoints_places import UnreadableDirectory, look

    try:
        found = checkpoints_verify.verification(
            look(options.dir),
            everything=options.all,
            limit=options.limit * 1e6 if options.limit else None,
            progress=sys.stderr.isatty(),
        )
    except (UnreadableDirectory, DigestError) as error:
        return _refuse(str(error))
    _show(options, found, checkpoints_verify.lines(found))
    return checkpoints_verify.exit_code(found)


def _diff(options: argparse.Namespace) -> int:
    from worker_hooks.cli import checkpoints_diff
    from worker_hooks.cli.checkpoints_stored import UnreadableCheckpoint

    try:
        found = checkpoints_diff.difference(options.a, options.b, values=options.values)
    except (UnreadableCheckpoint, DigestError) as error:
        return _refuse(str(error))
    _show(options, found, checkpoints_diff.lines(found))
    return GOOD if found["same"] else BAD


def _prune(options: argparse.Namespace) -> int:
    from worker_hooks.cli import checkpoints_prune
    from worker_hooks.cli.checkpoints_places import UnreadableDirectory, look

    if options.force is not None and not options.force.strip():
        return _refuse("--force needs a reason")
    if parse_folder(options.dir.absolute().name):
        return _refuse(f"{options.dir} is one checkpoint: give its run's folder")
    wanted = checkpoints_prune.Options(options.keep, options.yes, options.quarantined, options.force)
    try:
        found = checkpoints_prune.pruning(look(options.dir), wanted, time.time())
    except UnreadableDirectory as error:
        return _refuse(str(error))
    _show(options, found, checkpoints_prune.lines(found))
    return checkpoints_prune.exit_code(found)


def _show(options: argparse.Namespace, found: Json, lines: Iterable[str]) -> None:
    if options.json:
        print(json.dumps(found, indent=1, sort_keys=True, allow_nan=False))
    else:
        for line in lines:
            print(line)


def _refuse(why: str) -> int:
    print(f"relume: {why}", file=sys.stderr)
    return UNREADABLE


def _rate(value: str) -> float:
    rate = float(value)
    if not 0 < rate < 1e9:
        raise argparse.ArgumentTypeError(f"{value!r} is not a rate above 0")
    return rate


def _count(value: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number above 0")
    return int(value)
