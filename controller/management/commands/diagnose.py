"""manage.py diagnose PATH [--json]: an incident bundle gives the verdict. No database, no Slurm, no network."""

import json
import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controller.bundles.answer import answer
from controller.bundles.fields import BundleError
from controller.bundles.files import read_path
from controller.bundles.read import Scene
from controller.bundles.report import clean, coloured, plain, report
from controller.decision.assess import assess
from controller.decision.assessment import Assessment
from controller.decision.meanings import Knowledge
from controller.knowledge import load as knowledge

INTERNAL, BAD_INPUT = 1, 2
Told = list[tuple[Scene, Assessment]]


class Command(BaseCommand):
    help = (
        "Diagnoses an incident bundle (docs/formats.md, section 10): a JSON file, or a folder of logs, kernel logs and "
        "flight recorder dumps. The job's own word is trusted. "
        "Exit code: 0 a verdict, also `unknown`; 2 the bundle or the knowledge file cannot be read; 1 a fault of ours."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", help="case.json, or the folder of the bundle")
        parser.add_argument("--json", action="store_true", help="for scripts: an object, or a list for scenarios")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            known, told = diagnosed(Path(options["path"]))
            text = as_json(told) if options["json"] else self._as_report(told, known)
        except (BundleError, knowledge.KnowledgeError) as error:
            raise CommandError(clean(str(error)), returncode=BAD_INPUT) from error
        except Exception as error:
            if options["traceback"]:
                raise
            said = f"a fault of Relume's own, not of the bundle ({type(error).__name__}: {error}); --traceback shows it"
            raise CommandError(clean(said), returncode=INTERNAL) from error
        self._print(text)

    def _as_report(self, told: Told, known: Knowledge) -> str:
        paint = coloured if self._colour() else plain
        parts = [report(scene.case, found, known, paint, scene.name) for scene, found in told]
        return "\n\n\n".join(parts)

    def _colour(self) -> bool:
        return sys.stdout.isatty() and self.stdout.isatty() and not os.environ.get("NO_COLOR")

    def _print(self, text: str) -> None:
        """What a terminal's encoding does not have becomes a mark; a reader that has seen enough may close the pipe."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        try:
            self.stdout.write(text.encode(encoding, "replace").decode(encoding))
            self.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def diagnosed(path: Path) -> tuple[Knowledge, Told]:
    """Raises BundleError and KnowledgeError, which name the file and the key."""
    own = Path(settings.RELUME_KNOWLEDGE) if settings.RELUME_KNOWLEDGE else None
    known = knowledge.load(own)
    scenes = read_path(path, lambda: knowledge.site_recognisers(own))
    return known, [(scene, assess(scene.case, known)) for scene in scenes]


def as_json(told: Told) -> str:
    """One object; a list for scenarios, in their order. Only ASCII, so that no line of a log can break a reader."""
    answers = [answer(scene.case, found) for scene, found in told]
    listed = len(answers) != 1 or told[0][0].name
    return json.dumps(answers if listed else answers[0], indent=2, allow_nan=False)
