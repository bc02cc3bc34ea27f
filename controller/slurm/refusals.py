"""What Slurm's commands print when something is wrong, and which error of ours that is. Texts as tried on 22.05."""

from __future__ import annotations

from controller.errors import RefusalKind, SlurmError, SlurmRefused, SlurmUnavailable

# Slurm could not be reached, or the answer got lost. A write may have arrived all the same.
_AWAY = (
    "unable to contact slurm controller",
    "socket timed out",
    "zero bytes were transmitted or received",
    "connection refused",
    "connection timed out",
    "connection reset",
    "no route to host",
    "network is unreachable",
    "transport endpoint is not connected",
    "unexpected message received",  # what `scontrol requeue` says when slurmctld is dead
    "unspecified error",
    "communication connection failure",
    "communications connection failure",
    "communications send failure",
    "communications receive failure",
    "communications shutdown failure",
    "message receive failure",
    "in standby mode",
    "munge",
    "authentication",
    "could not establish a configuration source",
    "resource temporarily unavailable",
)
# Only this one says that nothing was sent: no connection, hence no request.
_NOT_SENT = ("unable to contact slurm controller (connect failure)", "could not establish a configuration source")

_REFUSALS: tuple[tuple[str, RefusalKind], ...] = (
    ("job is pending execution", RefusalKind.ALREADY_PENDING),
    ("job is no longer pending execution", RefusalKind.NOT_PENDING),
    ("job has already finished", RefusalKind.JOB_FINISHED),
    ("job/step already completing or completed", RefusalKind.JOB_FINISHED),
    ("requested operation is presently disabled", RefusalKind.NOT_REQUEUEABLE),
    ("only batch jobs are accepted", RefusalKind.NOT_REQUEUEABLE),
    ("try again later", RefusalKind.BUSY),
    ("transitional state", RefusalKind.BUSY),
    ("invalid job id", RefusalKind.INVALID_JOB),
    ("access/permission denied", RefusalKind.NOT_PERMITTED),
    ("access denied to requested reservation", RefusalKind.NOT_PERMITTED),
    ("invalid user id", RefusalKind.NOT_PERMITTED),
    # What stands before a command under another identity (`run_as`), and says no in Slurm's place.
    ("a password is required", RefusalKind.NOT_PERMITTED),
    ("is not in the sudoers file", RefusalKind.NOT_PERMITTED),
    ("may not run sudo", RefusalKind.NOT_PERMITTED),
    ("is not allowed to execute", RefusalKind.NOT_PERMITTED),
    ("may not be used by non-root users", RefusalKind.NOT_PERMITTED),
    ("operation not permitted", RefusalKind.NOT_PERMITTED),
    ("duplicate reservation name", RefusalKind.EXISTS),
    ("overlaps with another reservation", RefusalKind.OVERLAPS),
    ("requested reservation is in use", RefusalKind.IN_USE),
    ("requested reservation is invalid", RefusalKind.INVALID_RESERVATION),
    ("accounting storage is disabled", RefusalKind.DISABLED),
    ("not running a supported accounting_storage plugin", RefusalKind.DISABLED),
    ("invalid node name", RefusalKind.BAD_NODES),
    ("required node not available", RefusalKind.BAD_NODES),
    ("must specify a reason", RefusalKind.BAD_REQUEST),
    ("invalid node state", RefusalKind.BAD_REQUEST),
    ("not supported", RefusalKind.DISABLED),
)


def is_away(text: str) -> bool:
    lowered = text.lower()
    return any(sign in lowered for sign in _AWAY)


def error_from(text: str, *, call: str, write: bool) -> SlurmError:
    """The error for what a failed call printed. What is not recognised is a refusal of kind OTHER, text kept. A call
    that failed without a word has not been refused by anybody: a write may have arrived."""
    if not text.strip():
        return SlurmUnavailable(f"{call}: failed without a word", outcome_unknown=write)
    lowered = text.lower()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no text")
    for sign, kind in _REFUSALS:
        if sign in lowered:
            return SlurmRefused(f"{call}: {first}", kind=kind, text=text)
    if is_away(text):
        not_sent = any(sign in lowered for sign in _NOT_SENT)
        return SlurmUnavailable(f"{call}: {first}", outcome_unknown=write and not not_sent, text=text)
    return SlurmRefused(f"{call}: {first}", kind=RefusalKind.OTHER, text=text)
