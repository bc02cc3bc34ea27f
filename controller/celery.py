"""The Celery app: only a way to be woken. Tasks carry ids at most, keep no result, and may come twice or never."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controller.settings")

app = Celery("relume")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["controller"])
