from django.apps import AppConfig


class DashboardConfig(AppConfig):
    """The pages. Owns no table."""

    name = "dashboard"
    label = "dashboard"
