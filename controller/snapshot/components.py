"""A het job is one training job: Slurm shows a record for each component."""

from dataclasses import replace

from controller.slurm.views import ClusterView, JobView


def whole(view: ClusterView, job: JobView | None) -> JobView | None:
    """The record that was asked for, with the nodes of all components; anything but a het job's as it is."""
    if job is None or job.het_job_id is None:
        return job
    parts = [other for other in view.jobs.values() if other.het_job_id == job.het_job_id]
    parts.sort(key=lambda part: part.het_job_offset or 0)
    return replace(job, nodes=tuple(name for part in parts for name in part.nodes))
