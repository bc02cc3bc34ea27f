"""What Relume needs of Slurm: one port, and nothing about how the answer is fetched. The values are in `views`.

Rules that hold for every adapter:
- each method is one attempt with a time limit; nothing is retried inside. Errors are those of `controller.errors`;
- a failed or unreadable call raises: it is never an empty answer and never a state;
- a write that raises SlurmUnavailable with `outcome_unknown` may take effect later: re-read before anything else;
- drain, down, resume, hold, release, exclude, set_reservation and comment may be repeated; requeue, cancel and
  reserve may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

from controller.slurm.versions import Version
from controller.slurm.views import ClusterView, JobView, NodeView, PastJob, ReservationView


@runtime_checkable
class SlurmPort(Protocol):
    """See the module's text for the rules. Job ids are strings in Slurm's spelling."""

    # reading
    def read_cluster(self) -> ClusterView:
        """Nodes, jobs and configuration at once."""
        ...

    def read_job(self, job_id: str) -> JobView | None:
        """None only when Slurm itself says that it does not know this id."""
        ...

    def read_array(self, job_id: str) -> list[JobView]:
        """Every record of an array, het job or plain job; [] only when Slurm says that it does not know the id."""
        ...

    def read_node(self, name: str) -> NodeView | None:
        """None only when Slurm itself says that it does not know this node."""
        ...

    def read_reservation(self, name: str) -> ReservationView | None:
        """None only when Slurm itself says that there is no such reservation."""
        ...

    def read_history(self, job_id: str, *, user: str, since: datetime) -> list[PastJob]:
        """Accounting's records of this job id that belong to `user` and were submitted at `since` or later, oldest
        first: ids are reused, and a foreign or older record is not this job. [] when accounting knows none.
        SlurmRefused of kind DISABLED where the cluster keeps no accounting."""
        ...

    def ping(self) -> bool:
        """True when a slurmctld answers; False when Slurm's own tool says that none does. Raises on a time-out."""
        ...

    def version(self) -> Version:
        """Of the running slurmctld."""
        ...

    # writing: nodes (AdminLevel, SlurmUser or root)
    def drain_node(self, name: str, reason: str) -> None:
        """Nothing new starts there; what runs goes on. Replaces a reason that is there: look first."""
        ...

    def down_node(self, name: str, reason: str) -> None:
        """Kills every job on it, requeues those that may be: NODE_FAIL for the others, strangers' included."""
        ...

    def resume_node(self, name: str) -> None:
        """Clears DRAIN and DOWN, whoever set them: look first. The reason goes too on older Slurm; 25.11 keeps it."""
        ...

    # writing: reservations (operator, SlurmUser or root)
    def reserve_nodes(self, name: str, nodes: Sequence[str], *, user: str, minutes: int) -> None:
        """A reservation of exactly these nodes for `user`, from now on. Flags: IGNORE_JOBS (what runs there does not
        matter), FLEX (its job may use other nodes too, and is not killed when it ends), NO_HOLD_JOBS_AFTER (a job
        that still waits in it when it ends is set free). Whole: one unknown node fails it. SlurmRefused EXISTS when
        the name is taken: look first."""
        ...

    def delete_reservation(self, name: str) -> None:
        """SlurmRefused IN_USE while a job runs in it or waits for it, INVALID_RESERVATION when it is not there."""
        ...

    # writing: jobs (operator, owner or root)
    def hold_job(self, job_id: str) -> None: ...

    def release_job(self, job_id: str) -> None:
        """Clears every kind of hold, whoever's: look first. Wakes the scheduler."""
        ...

    def requeue_job(self, job_id: str, *, hold: bool) -> None:
        """Kills and queues it again. NOT idempotent: a second one kills the new attempt."""
        ...

    def exclude_nodes(self, job_id: str, names: Sequence[str], *, start_time: Literal["now"] | None = None) -> None:
        """Replaces the whole ExcNodeList of a pending job (an empty `names` clears it), in the same call with
        StartTime=now where asked. Fails whole on one unknown name."""
        ...

    def set_start_now(self, job_id: str) -> None:
        """StartTime=now. Without effect while the job is COMPLETING: Slurm overwrites it with its requeue delay."""
        ...

    def set_reservation(self, job_id: str, name: str) -> None:
        """Makes a pending job start in that reservation only; an empty `name` sets it free. May be repeated."""
        ...

    def cancel_job(self, job_id: str, *, signal: str | None = None) -> None:
        """Cancels, or with `signal` ("USR2") only signals the job's steps. NOT idempotent for a signal."""
        ...

    def update_comment(self, job_id: str, comment: str) -> None: ...
