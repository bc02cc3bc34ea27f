"""`manage.py create_user USER [--staff] [--password-file FILE]`: a person who may log in, named as in Slurm."""

import re
import secrets
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

USER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,149}")


class Command(BaseCommand):
    help = "Make a user, named as in Slurm. Without --password-file a random password is printed once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user")
        parser.add_argument("--staff", action="store_true", help="sees all training jobs and the admin pages")
        parser.add_argument("--password-file", help="first line is the password (never an argument: `ps` shows those)")

    def handle(self, *args: Any, **options: Any) -> None:
        users = get_user_model().objects
        name = options["user"]
        if not USER_NAME.fullmatch(name):
            raise CommandError(f"{name!r} cannot be a user name")
        if users.filter(username=name).exists():
            raise CommandError(f"there is a user {name!r} already")
        password = self._password(options["password_file"])
        users.create_user(name, password=password, is_staff=options["staff"])
        if options["password_file"] is None:
            self.stdout.write(password)
            self.stderr.write(f"the password of {name}; it is not shown again")

    def _password(self, file: str | None) -> str:
        if file is None:
            return secrets.token_urlsafe(16)
        try:
            password = Path(file).read_text(encoding="utf-8").split("\n")[0]
            validate_password(password)
        except OSError as error:
            raise CommandError(f"--password-file: {error}") from None
        except ValidationError as error:
            raise CommandError(f"--password-file: {' '.join(error.messages)}") from None
        return password
