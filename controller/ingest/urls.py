from django.urls import path

from controller.ingest.sense_views import sense
from controller.ingest.views import ingest

urlpatterns = [path("ingest", ingest, name="ingest"), path("sense", sense, name="sense")]
