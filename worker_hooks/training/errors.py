"""What checkpoint code raises. Telemetry raises nothing.

CheckpointError(Exception)        a save or a load went wrong: storage, a missing rank, an unusable value
├── RestartedFromScratch          every checkpoint of the run is bad, and nobody allowed to begin again at step 0
└── CheckpointMismatch            the checkpoint is sound but the tracked objects are other ones than at the save
Superseded(SystemExit, 76)        another attempt of this training job took over; this one must end without a trace
VerificationFailed(SystemExit, 77) the resumed run is provably another run; training on would hide it

The last two are SystemExit so that a training loop's `except Exception` cannot swallow them and the exit code is right
without anybody's help.
"""

from worker_hooks.protocol.exit_codes import SUPERSEDED, VERIFICATION_FAILED


class CheckpointError(Exception):
    pass


class CheckpointMismatch(CheckpointError):
    pass


class RestartedFromScratch(CheckpointError):
    """`bad`: each checkpoint with its reason, newest first."""

    def __init__(self, bad: list[str]) -> None:
        super().__init__(
            f"RESTARTED_FROM_SCRATCH refused: none of this run's checkpoints verifies ({'; '.join(bad)}). "
            "Run(fresh_start=True) begins again at step 0"
        )
        self.bad = bad


class Superseded(SystemExit):
    def __init__(self, message: str) -> None:
        super().__init__(SUPERSEDED)
        self.message = message

    def __str__(self) -> str:
        return self.message


class VerificationFailed(SystemExit):
    """`parts` names the checks that failed."""

    def __init__(self, message: str, parts: tuple[str, ...]) -> None:
        super().__init__(VERIFICATION_FAILED)
        self.message = message
        self.parts = parts

    def __str__(self) -> str:
        return self.message
