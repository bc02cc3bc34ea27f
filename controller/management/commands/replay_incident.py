"""manage.py replay_incident ID [--json] [--policy FILE]: today's code and policy on the facts of an old incident."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controller import policy_file
from controller.bundles.report import clean
from controller.decision.policy import Policy, PolicyError
from controller.replay import FIELDS, NotReplayable, Replay, replay
from controller.wiring import policy

NOT_REPLAYABLE, USAGE, DIFFERENT = 1, 2, 3


class Command(BaseCommand):
    help = (
        "Decides an old incident again from its stored facts and says what would be different. "
        "Exit code: 0 the same, 3 different, 1 it cannot be decided again, 2 the policy file cannot be read."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("incident", type=int)
        parser.add_argument("--json", action="store_true", help="for scripts")
        parser.add_argument("--policy", default="", help="another policy file than RELUME_POLICY")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            found = replay(options["incident"], self._policy(options["policy"]))
        except PolicyError as error:
            raise CommandError(str(error), returncode=USAGE) from error
        except NotReplayable as error:
            raise CommandError(str(error), returncode=NOT_REPLAYABLE) from error
        self.stdout.write(json.dumps(found.to_json(), indent=2) if options["json"] else "\n".join(told(found)))
        if found.differences:
            sys.exit(DIFFERENT)

    def _policy(self, path: str) -> Policy:
        return policy_file.load(path, settings.RELUME_MODE, settings.RELUME_KNOWLEDGE) if path else policy()


def told(found: Replay) -> Iterable[str]:
    then, now = found.versions["then"], found.versions["now"]
    yield f"then: {then['code']}, policy {then['policy']}"
    yield f"now:  {now['code']}, policy {now['policy']}"
    different = found.differences
    yield f"DIFFERENT in {', '.join(different)}" if different else "the same decision"
    for name in FIELDS:
        if name in different:
            yield f"  {name}"
            yield from _sides(found.then[name], found.now[name])
        else:
            yield f"  {name + ':':<12}{_said(found.now[name])}"


def _sides(then: Any, now: Any) -> Iterable[str]:
    """Of a list only what came and went."""
    if not (isinstance(then, list) and isinstance(now, list)):
        yield f"    then: {_said(then)}"
        yield f"    now:  {_said(now)}"
        return
    yield from (f"    - {clean(str(item))}" for item in then if item not in now)
    yield from (f"    + {clean(str(item))}" for item in now if item not in then)
    kept = sum(item in now for item in then)
    yield f"    {kept} the same"


def _said(value: Any) -> str:
    if isinstance(value, list):
        return clean(", ".join(map(str, value))) if value else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return clean(str(value)) if value != "" else "none"
