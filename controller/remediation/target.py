"""The Slurm job that a requeue is about, as one thing: a plain job, one task of an array, or a het job whole.

Tried on 22.05: the number of a het job's leader names all components for requeue, hold, release and updates, and
`number+offset` names one; a requeue of the leader, or DOWN under any component, restarts them all.
"""

from dataclasses import dataclass

from controller.remediation.results import Refuse, Result, Wait
from controller.remediation.turn import Turn
from controller.slurm.views import HoldKind, JobView

LOOK_S = 0.3


@dataclass(frozen=True)
class Target:
    """`parts`: one record, or the components of a het job, the leader first."""

    parts: tuple[JobView, ...]

    @property
    def lead(self) -> JobView:
        return self.parts[0]

    @property
    def job_id(self) -> str:
        """What requeue, hold, release and StartTime take."""
        return self.lead.job_id if self.lead.het_job_id is None else str(self.lead.het_job_id)

    @property
    def restarts(self) -> int:
        """A het job has restarted when its last component has."""
        return min(part.restarts for part in self.parts)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.parts for name in part.nodes))

    @property
    def completing(self) -> bool:
        return any(part.state.completing for part in self.parts)

    @property
    def pending(self) -> bool:
        return all(part.state.pending for part in self.parts)

    @property
    def running(self) -> bool:
        return all(part.state.running for part in self.parts)

    @property
    def terminal(self) -> bool:
        return any(part.state.terminal for part in self.parts)

    @property
    def base(self) -> str:
        """The first component's that says most: an end before a wait, a wait before running."""
        ordered = sorted(self.parts, key=lambda part: (not part.state.terminal, not part.state.pending))
        return ordered[0].state.base

    @property
    def holds(self) -> tuple[HoldKind, ...]:
        """Every kind of hold there is on any component."""
        return tuple(dict.fromkeys(part.hold_kind for part in self.parts if part.hold_kind is not None))

    @property
    def reason(self) -> str:
        held = [part.reason for part in self.parts if part.hold_kind is not None]
        return ", ".join(dict.fromkeys(held or [self.lead.reason]))

    def name_of(self, part: JobView) -> str:
        """What an update of this component alone takes."""
        return part.job_id if part.het_job_id is None else f"{part.het_job_id}+{part.het_job_offset}"


def of(turn: Turn, job: JobView) -> Target | Result:
    """The whole that `job` belongs to. Refuse for a job that is somebody else's by now: ids are reused."""
    owner = turn.incident.training_job.owner
    if job.user != owner:
        return Refuse(f"job {job.job_id} belongs to {job.user} now, not to {owner}")
    if job.het_job_id is None:
        return Target((job,))
    parts = sorted(turn.port.read_array(str(job.het_job_id)), key=lambda part: part.het_job_offset or 0)
    if [part.het_job_offset for part in parts] != list(range(len(parts))) or len(parts) < 2:
        return Wait(LOOK_S, f"Slurm does not show every component of het job {job.het_job_id}")
    return Target(tuple(parts))
