"""The records as they are, for staff: every table, read-only. What changes anything is a command, never a form here.

Accounts are the exception: they are Django's own, and a superuser makes them under "Authentication".
"""

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.contrib import admin
from django.db import models
from django.http import HttpRequest

# Digests of secrets are of no use to a reader.
HIDDEN = frozenset({"token_digest", "digest"})
WIDE = (models.JSONField, models.TextField)
SEARCHED = ("run_id", "name", "owner", "slurm_job_id", "target", "summary", "who")
COLUMNS = 8
PAGE = 50


if TYPE_CHECKING:
    _Admin = admin.ModelAdmin[Any]
else:
    _Admin = admin.ModelAdmin


class ReadOnly(_Admin):
    """Staff may look; nobody may add, change or delete, superusers included."""

    list_per_page = PAGE
    show_full_result_count = False
    actions = None

    def has_view_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False

    def get_fields(self, request: HttpRequest, obj: object | None = None) -> tuple[str, ...]:
        return tuple(field.name for field in self.opts.fields if field.name not in HIDDEN)

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        """The narrow columns; references come with one query for all rows, not one each."""
        narrow = [f.name for f in self.opts.fields if not isinstance(f, WIDE) and f.name not in HIDDEN]
        return tuple(narrow[:COLUMNS])

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        references = [f.name for f in self.opts.fields if isinstance(f, models.ForeignKey)]
        found = super().get_queryset(request)
        return found.select_related(*references) if references else found

    def get_list_filter(self, request: HttpRequest) -> tuple[str, ...]:
        names = {field.name for field in self.opts.fields}
        return tuple(name for name in ("state", "kind", "outcome", "base_state") if name in names)

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        names = {field.name for field in self.opts.fields}
        return tuple(name for name in SEARCHED if name in names)


admin.site.site_header = "Relume records"
admin.site.site_title = "Relume"
admin.site.index_title = "Every table, read-only"
for _model in apps.get_app_config("controller").get_models():
    admin.site.register(_model, ReadOnly)
