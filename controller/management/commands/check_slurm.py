"""manage.py check_slurm [--json]: what the controller may do in Slurm, and the exact lines that grant the rest."""

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from controller import environment as env
from controller.decision import rights
from controller.errors import SlurmError
from controller.models import Cluster
from controller.slurm.choose import AdapterUnusable
from controller.snapshot.rights import keep
from controller.up.accounts import UpError, choose
from controller.wiring import find_rights, slurm_choice

COMPLETE, DEGRADED, USAGE, UNAVAILABLE = 0, 1, 2, 69
MAY = {rights.YES: "yes", rights.SOME: "some", rights.NO: "NO", rights.UNKNOWN: "?"}


class Command(BaseCommand):
    help = (
        "Finds out what the controller's identities may do in Slurm, changing nothing. "
        "Exit code: 0 all there, 1 degraded, 2 usage, 69 Slurm does not answer."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        self._become_the_worker()
        try:
            found, chosen = find_rights(), slurm_choice()
        except AdapterUnusable as error:
            raise CommandError(str(error), returncode=USAGE) from error
        except SlurmError as error:
            raise CommandError(f"Slurm does not answer: {error}", returncode=UNAVAILABLE) from error
        if found is None:
            text = f"SLURM_ADAPTER={settings.SLURM_ADAPTER}: the in-memory Slurm knows no rights"
            raise CommandError(text, returncode=USAGE)
        told = {**found, "degraded": degraded(found), "stored": self._store(found)}
        told["adapter"] = {"name": chosen.name, "reason": chosen.reason}
        lines = [json.dumps(told, indent=2)] if options["json"] else table(told)
        self.stdout.write("\n".join(lines))
        if told["degraded"]:
            sys.exit(DEGRADED)

    def _become_the_worker(self) -> None:
        """Root may do everything: asked as root, the answer would be about somebody else than who acts."""
        try:
            worker = choose(env.text("RELUME_WEB_USER", ""), env.text("RELUME_WORKER_USER", "")).worker
        except UpError as error:
            raise CommandError(str(error), returncode=USAGE) from error
        if worker.switch:
            self.stderr.write(f"asking as {worker.name}, as the workers would (RELUME_WORKER_USER)")
            os.setgroups(worker.groups)
            os.setgid(worker.gid)
            os.setuid(worker.uid)
            os.environ.update(worker.environment())

    def _store(self, found: dict[str, Any]) -> bool:
        """For the controller's decisions, from its next sweep on."""
        try:
            keep(Cluster.objects.get_or_create(name=found["cluster"])[0].pk, found)
        except DatabaseError as error:
            self.stderr.write(f"not stored, the controller finds it out by itself: {error}")
            return False
        return True


def degraded(found: dict[str, Any]) -> list[str]:
    """How Relume works with less here, one line each."""
    lines = [
        f"{rights.WORDS[name]}: {MAY[one['may']]}: {one['without']}"
        for name, one in found["capabilities"].items()
        if one["may"] != rights.YES
    ]
    lines += [f"{fact['name']} is {fact['value']}: {fact['note']}" for fact in found["facts"] if not fact["ok"]]
    return [*lines, *found["unsupported"]]


def table(told: dict[str, Any]) -> list[str]:
    return [*_head(told), "", *_capabilities(told), "", *_facts(told), *_unsupported(told), "", _summary(told)]


def _head(told: dict[str, Any]) -> list[str]:
    names = {"reader": "reads", "jobs": "changes jobs", "nodes": "changes nodes"}
    whom = [
        f"{names[role]} as {one['user']}" + (f" ({one['through']})" if one["through"] else "")
        for role, one in told["identities"].items()
    ]
    through = f"through {told['adapter']['name']}: {told['adapter']['reason']}"
    return [f"cluster {told['cluster']}, Slurm {told['slurm_version']}: {', '.join(whom)}", through]


def _capabilities(told: dict[str, Any]) -> Iterator[str]:
    for name, one in told["capabilities"].items():
        yield f"{MAY[one['may']]:<5}{rights.WORDS[name]:<33}{one['proof']}"
        if one["may"] == rights.YES:
            continue
        yield f"{'':5}without it: {one['without']}"
        for label, way in zip(("grant it:", "or:"), filter(None, (one["grant"], *one["or"])), strict=False):
            first, *more = way.splitlines()
            yield f"{'':5}{label:<10}{first}"
            yield from (f"{'':15}{line}" for line in more)


def _facts(told: dict[str, Any]) -> Iterator[str]:
    for fact in told["facts"]:
        yield f"{'' if fact['ok'] else '!':<5}{fact['name']:<22}{fact['value']:<11}{fact['note']}"


def _unsupported(told: dict[str, Any]) -> list[str]:
    return ["", *told["unsupported"], "jobs there are watched, not acted upon"] if told["unsupported"] else []


def _summary(told: dict[str, Any]) -> str:
    count = len(told["degraded"])
    return f"degraded in {count} point{'s' if count > 1 else ''}" if count else "all there"
