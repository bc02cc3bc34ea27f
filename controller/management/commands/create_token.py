"""`manage.py create_token USER --scope submit|read|operate [--days N]`: prints a new API token, once."""

from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controller.api.tokens import SCOPES, mint
from controller.clock import utcnow

DEFAULT_DAYS = 365


class Command(BaseCommand):
    help = "Make an API token for a user, who is named as in Slurm. It is printed once and stored as a digest only."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user", help="user name, as in Slurm")
        parser.add_argument("--scope", choices=SCOPES, default="submit")
        parser.add_argument("--days", type=int, default=DEFAULT_DAYS, help="valid for so many days; 0: without an end")
        parser.add_argument("--name", default="", help="what it is for")

    def handle(self, *args: Any, **options: Any) -> None:
        days = options["days"]
        if not 0 <= days <= 36500:
            raise CommandError(f"--days {days}: expected 0 to 36500")
        user = get_user_model().objects.filter(username=options["user"]).first()
        if user is None:
            raise CommandError(f"no user {options['user']!r}; make one with `manage.py create_user {options['user']}`")
        name = options["name"] or f"{options['scope']} token"
        minted = mint(user, options["scope"], name[:64], timedelta(days=days) if days else None, utcnow())
        self.stdout.write(minted.token)
        end = f"until {minted.row.expires_at:%Y-%m-%d}" if minted.row.expires_at else "without an end"
        self.stderr.write(f"{options['scope']} token of {user.get_username()}, valid {end}; it is not shown again")
