"""The admin shows every record to staff and changes none, not even for a superuser."""

from collections.abc import Callable

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client

from tests.dashboard.story import Story

pytestmark = pytest.mark.db

MODELS = [model._meta.model_name for model in apps.get_app_config("controller").get_models()]


@pytest.fixture
def boss(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def test_every_table_is_there() -> None:
    assert {m._meta.model_name for m in admin.site._registry if m._meta.app_label == "controller"} == set(MODELS)


def test_staff_reads_and_nobody_writes(boss: Client, sign_in: Callable[..., Client]) -> None:
    Story(scale=0.02)
    root, ada = sign_in("root", staff=True), sign_in("ada")
    for model in MODELS:
        listed = f"/admin/controller/{model}/"
        assert root.get(listed).status_code == 200
        assert ada.get(listed).status_code == 302
        _unwritable(boss, model, listed)


def _unwritable(boss: Client, model: str, listed: str) -> None:
    table = apps.get_model("controller", model)
    row, before = table.objects.first(), list(table.objects.values())
    assert boss.get(f"{listed}add/").status_code == 403
    boss.post(listed, {"action": "delete_selected", "_selected_action": [str(row.pk if row else 1)], "post": "yes"})
    if row is not None:
        shown = boss.get(f"{listed}{row.pk}/change/")
        assert shown.status_code == 200 and 'name="_save"' not in shown.text and "token_digest" not in shown.text
        assert boss.post(f"{listed}{row.pk}/change/", {"name": "x", "state": "released"}).status_code == 403
        assert boss.post(f"{listed}{row.pk}/delete/", {"post": "yes"}).status_code == 403
    assert list(table.objects.values()) == before


def test_a_list_costs_the_same_for_any_number_of_rows(
    boss: Client, django_assert_max_num_queries: Callable[..., object]
) -> None:
    Story(scale=0.02)
    for model in ("nodehold", "incident", "action", "evidence", "attempt"):
        with django_assert_max_num_queries(12):  # type: ignore[attr-defined]
            boss.get(f"/admin/controller/{model}/")
