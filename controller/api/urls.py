from django.urls import path

from controller.api import views

urlpatterns = [
    path("register", views.register, name="register"),
    path("jobs/<str:run_id>", views.job, name="job-json"),
    path("jobs/<str:run_id>/save", views.save, name="job-save-json"),
    path("health", views.health, name="health"),
]
