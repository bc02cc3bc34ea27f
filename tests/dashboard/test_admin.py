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
    client.force_login(User.objects.create_superuser("boss", password="a long enough password"))
    return client


def test_every_table_is_there() -> None:
    assert {m._meta.model_name for m in admin.site._registry if m._meta.app_label == "controller"} == set(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_staff_reads_and_nobody_writes(boss: Client, sign_in: Callable[..., Client], model: str) -> None:
    Story(scale=0.02)
    listed = f"/admin/controller/{model}/"
    assert sign_in("root", staff=True).get(listed).status_code == 200
    assert sign_in("ada").get(listed).status_code == 302
    table = apps.get_model("controller", model)
    row = table.objects.first()
    before = list(table.objects.values())
    assert boss.get(f"{listed}add/").status_code == 403
    assert boss.post(listed, {"action": "delete_selected", "_selected_action": ["1"]}).status_code in (200, 302, 403)
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
