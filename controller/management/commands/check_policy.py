"""manage.py check_policy [FILE]: validates a policy file, and the overrides of what signs mean, and prints both."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controller import policy_file
from controller.decision.policy import PolicyError
from controller.knowledge.load import overrides


class Command(BaseCommand):
    help = "Validates a policy file (RELUME_POLICY by default) and prints the values in force."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", nargs="?", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        path = options["file"] or settings.RELUME_POLICY
        try:
            policy = policy_file.load(path, settings.RELUME_MODE, settings.RELUME_KNOWLEDGE)
        except PolicyError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(json.dumps(policy.values(), indent=2))
        if settings.RELUME_KNOWLEDGE:
            changes = overrides(Path(settings.RELUME_KNOWLEDGE))
            self.stderr.write("\n".join([f"{settings.RELUME_KNOWLEDGE}: {len(changes)} changes", *changes]))
        self.stderr.write(f"{path or 'no file: the defaults'}: valid, {policy.digest()}")
