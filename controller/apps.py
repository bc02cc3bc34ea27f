from django.apps import AppConfig


class ControllerConfig(AppConfig):
    """The one Django app that owns tables."""

    name = "controller"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Relume"
