"""The adapter for whatever Slurm is installed: its own commands, called with explicit options and a time limit.

Reading takes the text forms, which are 6 to 13 times cheaper than JSON, and turns to JSON for all jobs as soon as one
text record is in doubt (see `parse`). Nothing is retried here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from controller.errors import SlurmTimeout, SlurmUnavailable, SlurmUnreadable
from controller.slurm import checked, jobids, json_answers, parse, versions
from controller.slurm.building import moment, number, present
from controller.slurm.refusals import error_from, is_away
from controller.slurm.runner import Completed, Runner
from controller.slurm.versions import Version
from controller.slurm.views import ClusterView, JobView, NodeView

_SHOW = ("scontrol", "--all", "--local", "--oneliner", "show")
_ALL_IDS = ("squeue", "--all", "--local", "--noheader", "--states=all", "--format=%A")


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds per call. Slurm's own commands give up after MessageTimeout (10 s) for each slurmctld they try."""

    batch: float = 20.0
    read: float = 10.0
    write: float = 10.0


@dataclass(frozen=True, slots=True)
class CliSlurm:
    """SlurmPort through scontrol, squeue and scancel. `clock` gives the aware time that readings are stamped with.

    Node and job writes may run under separate credentials: give each its own runner.
    """

    clock: Callable[[], datetime]
    reader: Runner = field(default_factory=Runner)
    job_writer: Runner | None = None
    node_writer: Runner | None = None
    limits: TimeLimits = TimeLimits()

    # reading

    def read_cluster(self) -> ClusterView:
        config = self._config()
        nodes_at = self.clock()
        nodes_text = self._read(*_SHOW, "nodes", limit=self.limits.batch)
        jobs_at = self.clock()
        version = versions.parse(config["SLURM_VERSION"])
        jobs = self._jobs(version)
        return ClusterView(
            cluster=config["ClusterName"],
            version=version,
            nodes=parse.parse_nodes(nodes_text, default_port=_slurmd_port(config)),
            jobs={job.job_id: job for job in jobs},
            nodes_at=nodes_at,
            jobs_at=jobs_at,
            next_job_id=number(config.get("NEXT_JOB_ID")) or None,
            controller_boot_time=moment(config.get("BOOT_TIME")),
            private_data=tuple(word for word in present(config.get("PrivateData")).split(",") if word),
            config=config,
        )

    def read_job(self, job_id: str) -> JobView | None:
        wanted = jobids.parse(checked.job(job_id))
        found = self.read_array(job_id)
        if wanted.task is None and wanted.offset is None:
            return next((job for job in found if job.raw_id == wanted.job), None)
        if wanted.offset is not None:
            return next((job for job in found if job.het_job_offset == wanted.offset), None)
        return next((job for job in found if job.array_task_id == wanted.task), None)

    def read_array(self, job_id: str) -> list[JobView]:
        done = self._run(self.reader, (*_SHOW, "job", checked.job(job_id)), self.limits.read, write=False)
        if done.rc != 0 and _says_unknown(done, "invalid job id", f"job {job_id} not found"):
            return []
        text = self._checked_output(done, f"scontrol show job {job_id}", write=False)
        read = parse.parse_jobs(text)
        if not read.disputed(self._ids(job_id) if len(read.jobs) > 1 else [job.raw_id for job in read.jobs]):
            return list(read.jobs)
        wanted = jobids.parse(job_id).job
        everything = self._jobs_json(self.version())
        return [job for job in everything if wanted in (job.raw_id, job.array_job_id, job.het_job_id)]

    def read_node(self, name: str) -> NodeView | None:
        done = self._run(self.reader, (*_SHOW, "node", checked.node(name)), self.limits.read, write=False)
        if done.rc != 0 and _says_unknown(done, f"node {name} not found"):
            return None
        text = self._checked_output(done, f"scontrol show node {name}", write=False)
        return parse.parse_nodes(text, default_port=_slurmd_port(self._config()))[name]

    def ping(self) -> bool:
        done = self._run(self.reader, ("scontrol", "ping"), self.limits.read, write=False)
        words = (done.out + done.err).upper()
        if " IS UP" in words:
            return True
        if " IS DOWN" in words or is_away(words):
            return False
        raise SlurmUnreadable("scontrol ping said neither UP nor DOWN", text=done.out + done.err)

    def version(self) -> Version:
        return versions.parse(self._config()["SLURM_VERSION"])

    # writing

    def drain_node(self, name: str, reason: str) -> None:
        self._update_node(name, "State=DRAIN", f"Reason={checked.line(reason)}")

    def down_node(self, name: str, reason: str) -> None:
        self._update_node(name, "State=DOWN", f"Reason={checked.line(reason)}")

    def resume_node(self, name: str) -> None:
        self._update_node(name, "State=RESUME")

    def hold_job(self, job_id: str) -> None:
        self._write_job("scontrol", "hold", checked.job(job_id))

    def release_job(self, job_id: str) -> None:
        self._write_job("scontrol", "release", checked.job(job_id))

    def requeue_job(self, job_id: str, *, hold: bool) -> None:
        self._write_job("scontrol", "requeuehold" if hold else "requeue", checked.job(job_id))

    def exclude_nodes(self, job_id: str, names: Sequence[str], *, start_time: Literal["now"] | None = None) -> None:
        start = (f"StartTime={start_time}",) if start_time else ()
        self._update_job(job_id, f"ExcNodeList={checked.node_list(names)}", *start)

    def set_start_now(self, job_id: str) -> None:
        self._update_job(job_id, "StartTime=now")

    def cancel_job(self, job_id: str, *, signal: str | None = None) -> None:
        sent = (f"--signal={checked.signal_name(signal)}",) if signal else ()
        # Without --verbose scancel keeps silent about a job that is not there.
        done = self._write_job("scancel", "--verbose", *sent, checked.job(job_id))
        if "error:" in done.err:
            raise error_from(done.err, call=f"scancel {job_id}", write=True)

    def update_comment(self, job_id: str, comment: str) -> None:
        self._update_job(job_id, f"Comment={checked.line(comment)}")

    # how

    def _update_node(self, name: str, *changes: str) -> None:
        argv = ("scontrol", "update", f"NodeName={checked.node(name)}", *changes)
        self._write(self.node_writer or self.reader, argv)

    def _update_job(self, job_id: str, *changes: str) -> None:
        self._write_job("scontrol", "update", f"JobId={checked.job(job_id)}", *changes)

    def _write_job(self, *argv: str) -> Completed:
        return self._write(self.job_writer or self.reader, argv)

    def _write(self, runner: Runner, argv: Sequence[str]) -> Completed:
        done = self._run(runner, argv, self.limits.write, write=True)
        self._checked_output(done, " ".join(argv[:3]), write=True)
        return done

    def _config(self) -> dict[str, str]:
        return parse.parse_config(self._read(*_SHOW, "config", limit=self.limits.read))

    def _jobs(self, version: Version) -> Sequence[JobView]:
        read = parse.parse_jobs(self._read(*_SHOW, "jobs", limit=self.limits.batch))
        # Asked after the records: a job submitted in between is then in the list only, which is no dispute.
        return self._jobs_json(version) if read.disputed(self._ids()) else read.jobs

    def _ids(self, job_id: str | None = None) -> list[int]:
        only = (f"--jobs={job_id}",) if job_id else ()
        lines = self._read(*_ALL_IDS, *only, limit=self.limits.batch).split()
        try:
            return [int(line) for line in lines]
        except ValueError as wrong:
            raise SlurmUnreadable(f"squeue printed no list of ids: {wrong}") from wrong

    def _jobs_json(self, version: Version) -> list[JobView]:
        argv: tuple[str, ...] = ("squeue", "--all", "--local", "--states=all", "--json")
        if version.scontrol_json:
            argv = ("scontrol", "--all", "--local", "--json", "show", "jobs")
        return json_answers.parse_jobs(self._read(*argv, limit=self.limits.batch))

    def _read(self, *argv: str, limit: float) -> str:
        done = self._run(self.reader, argv, limit, write=False)
        return self._checked_output(done, " ".join(argv), write=False)

    @staticmethod
    def _run(runner: Runner, argv: Sequence[str], limit: float, *, write: bool) -> Completed:
        call = " ".join(argv[:3])
        try:
            done = runner.run(argv, limit)
        except OSError as wrong:
            raise SlurmUnavailable(f"{call}: {wrong}", outcome_unknown=False, text=str(wrong)) from wrong
        if done.timed_out:
            raise SlurmTimeout(f"{call}: no answer in {limit:g} s", outcome_unknown=write, text=done.err)
        if done.truncated:
            raise SlurmUnreadable(f"{call}: more output than we take", text=done.err)
        return done

    @staticmethod
    def _checked_output(done: Completed, call: str, *, write: bool) -> str:
        if done.rc == 0:
            return done.out
        if done.rc is not None and done.rc < 0:
            raise SlurmUnavailable(f"{call}: killed by signal {-done.rc}", outcome_unknown=write, text=done.err)
        raise error_from(f"{done.err}\n{done.out}".strip(), call=call, write=write)


def _slurmd_port(config: Mapping[str, str]) -> int:
    return number(config.get("SlurmdPort"))


def _says_unknown(done: Completed, *texts: str) -> bool:
    said = f"{done.err}\n{done.out}".lower()
    return any(text.lower() in said for text in texts)
