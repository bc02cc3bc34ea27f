"""The adapter for whatever Slurm is installed: its own commands, called with explicit options and a time limit.

Here is what changes Slurm: each method is one call, each argument a word of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from controller.errors import RefusalKind, SlurmRefused
from controller.slurm import checked
from controller.slurm.calls import TimeLimits
from controller.slurm.cli_reading import CliReading
from controller.slurm.refusals import error_from

__all__ = ["CliSlurm", "TimeLimits"]


@dataclass(frozen=True, slots=True)
class CliSlurm(CliReading):
    """SlurmPort through scontrol, squeue, scancel and sacct. See `Calls` for what it is made with."""

    # nodes

    def drain_node(self, name: str, reason: str) -> None:
        self._update_node(name, "State=DRAIN", f"Reason={checked.line(reason)}")

    def down_node(self, name: str, reason: str) -> None:
        self._update_node(name, "State=DOWN", f"Reason={checked.line(reason)}")

    def resume_node(self, name: str) -> None:
        self._update_node(name, "State=RESUME")

    # reservations: the job credential's, because an Operator may make them; node updates need an Administrator

    def reserve_nodes(self, name: str, nodes: Sequence[str], *, user: str, minutes: int) -> None:
        if not nodes or minutes < 1:
            raise ValueError(f"no nodes or no time to reserve: {nodes!r}, {minutes} min")
        wishes = [f"Nodes={checked.node_list(nodes)}", f"Users={checked.user(user)}"]
        wishes += ["StartTime=now", f"Duration={minutes}", "Flags=IGNORE_JOBS,FLEX,NO_HOLD_JOBS_AFTER"]
        try:
            self.write_job("scontrol", "create", f"ReservationName={checked.reservation(name)}", *wishes)
        except SlurmRefused as refused:
            # Slurm looks at the nodes before it looks at the name: our own first attempt is in its way as well.
            if refused.kind is RefusalKind.OVERLAPS and self.read_reservation(name) is not None:
                raise SlurmRefused(str(refused), kind=RefusalKind.EXISTS, text=refused.text) from refused
            raise

    def delete_reservation(self, name: str) -> None:
        self.write_job("scontrol", "delete", f"ReservationName={checked.reservation(name)}")

    # jobs

    def hold_job(self, job_id: str) -> None:
        self.write_job("scontrol", "hold", checked.job(job_id))

    def release_job(self, job_id: str) -> None:
        self.write_job("scontrol", "release", checked.job(job_id))

    def requeue_job(self, job_id: str, *, hold: bool) -> None:
        self.write_job("scontrol", "requeuehold" if hold else "requeue", checked.job(job_id))

    def exclude_nodes(self, job_id: str, names: Sequence[str], *, start_time: Literal["now"] | None = None) -> None:
        start = (f"StartTime={start_time}",) if start_time else ()
        self._update_job(job_id, f"ExcNodeList={checked.node_list(names)}", *start)

    def set_start_now(self, job_id: str) -> None:
        self._update_job(job_id, "StartTime=now")

    def set_reservation(self, job_id: str, name: str) -> None:
        self._update_job(job_id, f"ReservationName={checked.reservation(name) if name else ''}")

    def cancel_job(self, job_id: str, *, signal: str | None = None) -> None:
        sent = (f"--signal={checked.signal_name(signal)}",) if signal else ()
        # Without --verbose scancel keeps silent about a job that is not there.
        done = self.write_job("scancel", "--verbose", *sent, checked.job(job_id))
        if "error:" in done.err:
            raise error_from(done.err, call=f"scancel {job_id}", write=True)

    def update_comment(self, job_id: str, comment: str) -> None:
        self._update_job(job_id, f"Comment={checked.line(comment)}")

    # how

    def _update_node(self, name: str, *changes: str) -> None:
        self.write_node("scontrol", "update", f"NodeName={checked.node(name)}", *changes)

    def _update_job(self, job_id: str, *changes: str) -> None:
        self.write_job("scontrol", "update", f"JobId={checked.job(job_id)}", *changes)
