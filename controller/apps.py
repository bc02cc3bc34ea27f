import sys

import structlog
from django.apps import AppConfig


class ControllerConfig(AppConfig):
    """The one Django app that owns tables."""

    name = "controller"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Relume"

    def ready(self) -> None:
        """What is logged goes to stderr: a command's stdout is its answer, JSON for scripts."""
        structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
