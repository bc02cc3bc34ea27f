"""Every error Relume raises on purpose, as one tree: whose fault it is, and whether trying again can help.

RelumeError
└── SlurmError                  something went wrong between us and Slurm; never an answer, never a state
    ├── SlurmUnavailable        slurmctld (or the way to it) is away            retry
    │   └── SlurmTimeout        no answer in the time given; a write may still take effect later     retry a read only
    ├── SlurmRefused            Slurm answered, and said no                     terminal, but for `busy`
    └── SlurmUnreadable         Slurm answered something we cannot read         terminal until a person looks
"""

from __future__ import annotations

from enum import StrEnum


class RelumeError(Exception):
    """Root of the tree. `retry` says whether the same call may succeed later without anybody changing anything."""

    retry: bool = False


class SlurmError(RelumeError):
    """A call to Slurm that did not give an answer to act upon. `text` keeps what Slurm printed, unedited."""

    def __init__(self, message: str, *, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class SlurmUnavailable(SlurmError):
    """Slurm could not be asked. `outcome_unknown` is True for a write that may have reached slurmctld all the same:
    the caller must re-read Slurm until it answers, and must not send the write again blind."""

    retry = True

    def __init__(self, message: str, *, outcome_unknown: bool, text: str = "") -> None:
        super().__init__(message, text=text)
        self.outcome_unknown = outcome_unknown


class SlurmTimeout(SlurmUnavailable):
    """No answer within the time limit. For a write the outcome is always unknown (a late effect has been seen)."""


class RefusalKind(StrEnum):
    """Why Slurm said no. Everything the adapters do not recognise is OTHER, with the raw text kept."""

    NOT_PERMITTED = "not_permitted"
    INVALID_JOB = "invalid_job"  # Slurm does not know this job id (any more)
    JOB_FINISHED = "job_finished"  # it knows it, and the job is over
    NOT_REQUEUEABLE = "not_requeueable"  # --no-requeue, or not a batch job
    ALREADY_PENDING = "already_pending"  # a requeue of a job that is queued already
    NOT_PENDING = "not_pending"  # the change is possible for a pending job only
    BUSY = "busy"  # "try again later"
    BAD_NODES = "bad_nodes"  # an unknown node name, or a list Slurm cannot read
    EXISTS = "exists"  # the name is taken
    OVERLAPS = "overlaps"  # nodes that another reservation has
    IN_USE = "in_use"  # a reservation that jobs use
    INVALID_RESERVATION = "invalid_reservation"  # Slurm does not know it (any more)
    BAD_REQUEST = "bad_request"  # our mistake: a malformed or incomplete update
    DISABLED = "disabled"  # this Slurm cannot do it as configured
    OTHER = "other"


class SlurmRefused(SlurmError):
    """Slurm answered and refused; nothing was changed. Only `busy` is worth sending again."""

    def __init__(self, message: str, *, kind: RefusalKind, text: str = "") -> None:
        super().__init__(message, text=text)
        self.kind = kind
        self.retry = kind is RefusalKind.BUSY


class SlurmUnreadable(SlurmError):
    """Slurm's answer could not be parsed, was cut short, or lacks what it must hold: an error, never a state."""
