"""Slurm read through scontrol, squeue and sacct.

The text forms are taken, which are 6 to 13 times cheaper than JSON: nodes from scontrol, all jobs from one squeue with
columns of our own (`columns`), one job from scontrol, and from squeue too when its text is in doubt. JSON is what is
left when squeue prints another table than we asked for.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from controller.errors import RefusalKind, SlurmRefused, SlurmUnreadable
from controller.slurm import accounting, checked, columns, jobids, json_answers, parse, parse_site, versions
from controller.slurm.building import number
from controller.slurm.calls import Calls, checked_output
from controller.slurm.memory import OF_THIS_PROCESS, Reading
from controller.slurm.refusals import is_away
from controller.slurm.runner import Completed
from controller.slurm.versions import Version
from controller.slurm.views import ClusterView, JobView, NodeView, PastJob, ReservationView

_SHOW = ("scontrol", "--all", "--local", "--oneliner", "show")


@dataclass(frozen=True, slots=True)
class CliReading(Calls):
    """The reading half of SlurmPort."""

    memory: Reading = field(default=OF_THIS_PROCESS, repr=False, compare=False)

    def read_cluster(self) -> ClusterView:
        config = self.read_config()
        version = versions.parse(config["SLURM_VERSION"])
        partitions = parse_site.parse_partitions(self._show("partitions"))
        reservations = self.read_reservations()
        nodes_at = self.clock()
        nodes = self._nodes(_slurmd_port(config))
        jobs_at = self.clock()
        jobs = self._jobs(version)
        return parse_site.cluster_view(
            config, nodes, jobs, partitions=partitions, reservations=reservations, nodes_at=nodes_at, jobs_at=jobs_at
        )

    def read_job(self, job_id: str) -> JobView | None:
        wanted = jobids.parse(checked.job(job_id))
        found = self.read_array(job_id)
        return next((job for job in found if wanted.names(job)), None)

    def read_array(self, job_id: str) -> list[JobView]:
        done = self.attempt((*_SHOW, "job", checked.job(job_id)), self.limits.read)
        if done.rc != 0 and _says(done, "invalid job id", f"job {job_id} not found"):
            return []
        sure = parse.parse_jobs(checked_output(done, f"scontrol show job {job_id}", write=False)).sure
        if sure is not None:
            return [sure]
        wanted = jobids.parse(job_id).job
        try:
            found = self._jobs(self.version(), wanted)
        except SlurmRefused as refused:
            if refused.kind is RefusalKind.INVALID_JOB:  # it was there a moment ago
                return []
            raise
        return [job for job in found if wanted in (job.raw_id, job.array_job_id, job.het_job_id)]

    def read_node(self, name: str) -> NodeView | None:
        done = self.attempt((*_SHOW, "node", checked.node(name)), self.limits.read)
        if done.rc != 0 and _says(done, f"node {name} not found"):
            return None
        text = checked_output(done, f"scontrol show node {name}", write=False)
        return parse.parse_nodes(text, default_port=_slurmd_port(self.read_config()))[name]

    def read_reservation(self, name: str) -> ReservationView | None:
        done = self.attempt((*_SHOW, "reservation", checked.reservation(name)), self.limits.read)
        if done.rc != 0 and _says(done, f"reservation {name} not found"):
            return None
        found = parse_site.parse_reservations(checked_output(done, f"scontrol show reservation {name}", write=False))
        return found.get(name)

    def read_config(self) -> dict[str, str]:
        """As scontrol prints it."""
        return parse_site.parse_config(self._show("config"))

    def read_reservations(self) -> dict[str, ReservationView]:
        """All of them, by name."""
        return parse_site.parse_reservations(self._show("reservations"))

    def read_history(self, job_id: str, *, user: str, since: datetime) -> list[PastJob]:
        text = self.ask(*accounting.question(job_id, since), limit=self.limits.batch)
        return accounting.parse_history(text, job_id, user, since)

    def ping(self) -> bool:
        done = self.attempt(("scontrol", "ping"), self.limits.read)
        words = (done.out + done.err).upper()
        if " IS UP" in words:
            return True
        if " IS DOWN" in words or is_away(words):
            return False
        raise SlurmUnreadable("scontrol ping said neither UP nor DOWN", text=done.out + done.err)

    def version(self) -> Version:
        return versions.parse(self.read_config()["SLURM_VERSION"])

    # how

    def _show(self, what: str) -> str:
        return self.ask(*_SHOW, what, limit=self.limits.read)

    def _nodes(self, default_port: int) -> list[NodeView]:
        records = parse.node_records(self.ask(*_SHOW, "nodes", limit=self.limits.batch))
        return self.memory.of_nodes(default_port).read(records, partial(parse.parse_node, default_port=default_port))

    def _jobs(self, version: Version, only: int | None = None) -> Sequence[JobView]:
        """All jobs, or those of one id."""
        try:
            records = self._columns(version, only)
            if only is not None:
                return [columns.view_of(record) for record in records]
            return self.memory.jobs.read(records, columns.view_of)
        except SlurmUnreadable:
            return self._jobs_json(version)

    def _columns(self, version: Version, only: int | None) -> list[columns.Record]:
        table = columns.Table(secrets.token_hex(8), has_excluded=version.squeue_excluded)
        text = self.ask(*table.question(only), limit=self.limits.batch)
        excluded: Mapping[str, str] = {}
        if not table.has_excluded:  # asked afterwards, so that every job of the table is in it
            excluded = columns.exclusions(self.ask(*columns.exclusions_question(only), limit=self.limits.batch))
        return table.records(text, excluded)

    def _jobs_json(self, version: Version) -> list[JobView]:
        argv: tuple[str, ...] = ("squeue", "--all", "--local", "--states=all", "--json")
        if version.scontrol_json:
            argv = ("scontrol", "--all", "--local", "--json", "show", "jobs")
        return json_answers.parse_jobs(self.ask(*argv, limit=self.limits.batch))


def _slurmd_port(config: Mapping[str, str]) -> int:
    return number(config.get("SlurmdPort"))


def _says(done: Completed, *texts: str) -> bool:
    said = f"{done.err}\n{done.out}".lower()
    return any(text.lower() in said for text in texts)
