"""The command line of `relume run` (docs/formats.md section 3)."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class UsageError(ValueError):
    """The command line cannot be understood; nothing was started."""


@dataclass(frozen=True)
class RunOptions:
    program: tuple[str, ...]
    ranks: int | None
    checkpoint_root: Path
    interface: str | None
    spool: Path | None
    teardown_grace_s: float
    generation_timeout_s: float
    stop_grace_s: float
    linger_s: float


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(message)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="relume run",
        usage="relume run [options] -- program [args]",
        description="Start this node's ranks of a training job and keep them under watch. One task per node.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--ranks", type=_positive, metavar="N", help="ranks on this node (default: its GPUs, else 1)")
    add(
        "--checkpoint-root",
        type=Path,
        metavar="DIR",
        help="default: $RELUME_CHECKPOINT_ROOT or ./relume-checkpoints",
    )
    add("--interface", metavar="NAME", help="network interface for training traffic")
    add("--spool", type=Path, metavar="DIR", help="where unsent records wait (default: in the checkpoint root)")
    add("--teardown-grace", type=_seconds, default=2.0, metavar="S", help="from SIGTERM to SIGKILL (default 2)")
    add("--generation-timeout", type=_seconds, default=120.0, metavar="S", help="wait for the leader (default 120)")
    add("--stop-grace", type=_seconds, default=30.0, metavar="S", help="time to end after a stop request (default 30)")
    add("--linger", type=_seconds, default=10.0, metavar="S", help="stay after a failure, for probes (default 10)")
    return parser


def parse_options(argv: Sequence[str], environ: Mapping[str, str]) -> RunOptions:
    """Raises UsageError; `--help` prints and exits as argparse does."""
    own, program = list(argv), []
    if "--" in own:
        cut = own.index("--")
        own, program = own[:cut], own[cut + 1 :]
    found = build_parser().parse_args(own)
    if not program:
        raise UsageError("nothing to run: put the program after --")
    root = found.checkpoint_root or Path(environ.get("RELUME_CHECKPOINT_ROOT") or "relume-checkpoints")
    return RunOptions(
        program=tuple(program),
        ranks=found.ranks,
        checkpoint_root=root.absolute(),
        interface=found.interface,
        spool=found.spool.absolute() if found.spool else None,
        teardown_grace_s=found.teardown_grace,
        generation_timeout_s=found.generation_timeout,
        stop_grace_s=found.stop_grace,
        linger_s=found.linger,
    )


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value
