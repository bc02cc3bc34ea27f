"""Who may see what: a researcher sees the training jobs of their own Slurm user name, staff sees all."""

from typing import Any

from django.db.models import QuerySet

from controller.models import Incident, TrainingJob


def sees_all(user: Any) -> bool:
    return bool(user.is_active and user.is_staff)


def visible_jobs(user: Any) -> QuerySet[TrainingJob]:
    """Every training job that this user may open."""
    jobs = TrainingJob.objects.all()
    return jobs if sees_all(user) else jobs.filter(owner=user.get_username())


def own_jobs(user: Any) -> QuerySet[TrainingJob]:
    return TrainingJob.objects.filter(owner=user.get_username())


def visible_incidents(user: Any) -> QuerySet[Incident]:
    incidents = Incident.objects.all()
    return incidents if sees_all(user) else incidents.filter(training_job__owner=user.get_username())
