"""The pages. Each has a twin under `live/` that its refresh asks, which answers 304 while nothing changed."""

from django.contrib.auth.views import LoginView, LogoutView
from django.templatetags.static import static
from django.urls import path
from django.views.generic import RedirectView

from dashboard.views import incidents, job, jobs, nodes

urlpatterns = [
    path("", jobs.home, name="jobs"),
    path("live/jobs", jobs.home_live, name="jobs-live"),
    path("jobs/<str:run_id>", job.job, name="job"),
    path("jobs/<str:run_id>/live", job.job_live, name="job-live"),
    path("jobs/<str:run_id>/save", job.save, name="job-save"),
    path("jobs/<str:run_id>/curve.json", job.curve, name="job-curve"),
    path("nodes", nodes.nodes, name="nodes"),
    path("live/nodes", nodes.nodes_live, name="nodes-live"),
    path("nodes/<str:name>", nodes.node, name="node"),
    path("nodes/<str:name>/live", nodes.node_live, name="node-live"),
    path("incidents", incidents.incidents, name="incidents"),
    path("live/incidents", incidents.incidents_live, name="incidents-live"),
    path("incidents/<int:number>", incidents.incident, name="incident"),
    path("incidents/<int:number>/live", incidents.incident_live, name="incident-live"),
    path(
        "login", LoginView.as_view(template_name="dashboard/login.html", redirect_authenticated_user=True), name="login"
    ),
    path("favicon.ico", RedirectView.as_view(url=static("dashboard/icon.svg"))),
    path("logout", LogoutView.as_view(), name="logout"),
]
