"""Every address of the web process."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("controller.ingest.urls")),
    path("api/v1/", include("controller.api.urls")),
    path("", include("dashboard.urls")),
]
