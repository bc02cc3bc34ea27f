"""`manage.py first_admin`: makes the user `admin` with a random password and prints it, if there is no admin yet."""

import secrets
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

NAME = "admin"


class Command(BaseCommand):
    help = "Make the first admin and print the password, once; prints nothing if there is an admin already."

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        users = get_user_model().objects
        if users.filter(is_superuser=True).exists():
            return
        if users.filter(username=NAME).exists():
            raise CommandError(f"the user {NAME!r} is no admin: `manage.py createsuperuser` makes one")
        password = secrets.token_urlsafe(16)
        users.create_superuser(NAME, password=password)
        self.stdout.write(password)
