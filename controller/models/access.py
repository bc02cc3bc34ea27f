"""Who may speak to the API, and who did what."""

from django.conf import settings
from django.db import models

from controller.models.columns import json_dict


class ApiToken(models.Model):
    """A user's token. Shown once, stored as its digest. `scope`: submit, read, operate."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=64)
    digest = models.CharField(max_length=80, unique=True)
    scope = models.CharField(max_length=16)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} of {self.user_id}"


class AuditEntry(models.Model):
    """Every change that a person asked for."""

    at = models.DateTimeField()
    who = models.CharField(max_length=150)
    what = models.CharField(max_length=64)
    target = models.CharField(max_length=255)
    reason = models.TextField(blank=True, default="")
    data = json_dict()

    class Meta:
        ordering = ["-at"]

    def __str__(self) -> str:
        return f"{self.who} {self.what} {self.target}"
