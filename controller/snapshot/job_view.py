"""A Slurm job as builtins (`TrainingJob.view`), and back to the facts of the decision core."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from controller.decision import silence
from controller.decision.facts import SlurmJobFact
from controller.slurm import unsupported
from controller.slurm.views import JobView, NodeView
from controller.snapshot import launches
from worker_hooks.protocol import exit_codes

MEANINGS = {
    exit_codes.ATTEMPT_FAILED: "attempt_failed",
    exit_codes.SUPERSEDED: "superseded",
    exit_codes.VERIFICATION_FAILED: "verification_failed",
}
# `run_time` differs at every reading, which would make every row a changed one; `start_time` says the same.
LEFT_OUT = frozenset({"state", "extra", "time_limit", "run_time"})
OVER = frozenset({"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"})


def view_of(job: JobView, nodes: Mapping[str, NodeView], before: Mapping[str, Any]) -> dict[str, Any]:
    """The JobView's own names; times are Unix seconds; the state is `base`, `flags` and `raw_state`. `unsupported`:
    why this job is only watched; a queued job holds no nodes, so what its last ones said (`before`) stays.
    `last_start`: where it was last started."""
    plain = {f.name: _plain(getattr(job, f.name)) for f in fields(job) if f.name not in LEFT_OUT}
    state = {"base": job.state.base, "flags": sorted(job.state.flags), "raw_state": job.state.raw}
    limit = job.time_limit.total_seconds() if isinstance(job.time_limit, timedelta) else None
    kept = before.get("unsupported", ()) if not job.nodes else ()
    refusals = list(dict.fromkeys([*unsupported.of_job(job, nodes), *kept]))
    start = launches.last_start(job, before)
    return {**plain, **state, "time_limit_s": limit, "unsupported": refusals, "last_start": start}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, tuple):
        return list(value)
    return value


def missing(view: Mapping[str, Any], found: JobView | None, private_data: Collection[str]) -> dict[str, Any]:
    """Slurm does not show the job: what was last seen stays, marked. A job that left slurmctld has not failed, and one
    that is hidden has not even left; a job of another user under the same id is not this job."""
    if found is not None:
        why = f"the job id belongs to {found.user} now"
    elif "jobs" in private_data:
        why = "Slurm does not show it to Relume, and may be hiding it (PrivateData=jobs)"
    else:
        why = "Slurm does not show it"
    return {**view, "missing": why}


def excuse(view: Mapping[str, Any]) -> str | None:
    """Why the job need not speak, by its view; a job that is not shown is unknown, and so excused."""
    if view.get("missing"):
        return str(view["missing"])
    return silence.of_job(view["base"], view["flags"]) if "base" in view else None


def slurm_fact(view: Mapping[str, Any]) -> SlurmJobFact | None:
    """None when Slurm never showed the job, or lost sight of it before it was over."""
    if not view or "base" not in view or (view.get("missing") and view["base"] not in OVER):
        return None
    code = view.get("exit_code")
    return SlurmJobFact(
        job_id=view["job_id"],
        base=view["base"],
        flags=frozenset(view["flags"]),
        reason=view["reason"],
        restarts=view["restarts"],
        requeue=view["requeue"],
        batch=view["batch"],
        nodes=tuple(view["nodes"]),
        required_nodes=tuple(view["required_nodes"]),
        excluded_nodes=tuple(view["excluded_nodes"]),
        partitions=tuple(view["partition"]),
        num_nodes=view["num_nodes"],
        held_by=view["hold_kind"],
        exit_code=code,
        exit_signal=view["exit_signal"],
        exit_meaning=MEANINGS.get(code) if code is not None else None,
        user=view.get("user", ""),
        unsupported=tuple(view.get("unsupported", ())),
        reservation=view.get("reservation") or "",
        start_at=view.get("start_time"),
        end_at=view.get("end_time"),
        submit_at=view.get("submit_time"),
        batch_host=view.get("batch_host", ""),
        time_limit_s=view.get("time_limit_s"),
    )
