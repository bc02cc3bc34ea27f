from django.urls import path

from controller.ingest.views import ingest

urlpatterns = [path("ingest", ingest, name="ingest")]
