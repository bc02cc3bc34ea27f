"""`relume`: the command of the job side. A command is imported only when asked for: `sbatch` must start fast."""

import sys
from collections.abc import Sequence

USAGE = """\
usage: relume COMMAND [arguments]

  sbatch ...                        submit a batch script; same arguments, output and exit code as sbatch
  run [options] -- program [args]   under srun, one task per node: start this node's ranks and watch them
  checkpoints list|verify|diff|prune DIR   look at, verify, compare and tidy checkpoints on disk
  --version                         print the version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code of the command; 2 for a command that does not exist."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments else ""
    if command == "sbatch":
        from worker_hooks.cli.sbatch import main as sbatch

        return sbatch(arguments[1:])
    if command == "run":
        from worker_hooks.agent.supervise import main as run

        return run(arguments[1:])
    if command == "checkpoints":
        from worker_hooks.cli.checkpoints import main as checkpoints

        return checkpoints(arguments[1:])
    if command in ("--version", "-V"):
        from worker_hooks._version import __version__

        print(f"relume {__version__}")
        return 0
    wanted = command in ("-h", "--help", "help")
    print(USAGE, end="", file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2
