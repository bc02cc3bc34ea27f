"""manage.py pause REASON | --resume | --mode MODE: the switches of a cluster, from the head node's shell."""

import getpass
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controller import clock, commands
from controller.decision.policy import MODES
from controller.models import Cluster


class Command(BaseCommand):
    help = "Pauses Relume on a cluster (nothing new is begun), resumes it, or sets its mode."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("reason", help="why, for the audit trail and everybody who wonders")
        parser.add_argument("--resume", action="store_true")
        parser.add_argument("--mode", choices=[*MODES, "policy"], help="policy: the policy file's mode again")
        parser.add_argument("--cluster", default="", help="its name; not needed when there is only one")

    def handle(self, *args: Any, **options: Any) -> None:
        cluster = self._cluster(options["cluster"])
        shared = {"who": f"{getpass.getuser()} (shell)", "reason": options["reason"], "now": clock.now()}
        try:
            if options["mode"]:
                mode = "" if options["mode"] == "policy" else options["mode"]
                commands.set_mode(cluster, mode, **shared)
            elif options["resume"]:
                commands.resume(cluster, **shared)
            else:
                commands.pause(cluster, **shared)
        except commands.CommandRefused as refused:
            raise CommandError(str(refused)) from refused
        cluster.refresh_from_db()
        state = f"paused: {cluster.paused_reason}" if cluster.paused_reason else "not paused"
        self.stdout.write(f"{cluster.name}: {state}; mode {cluster.mode or 'of the policy'}")

    def _cluster(self, name: str) -> Cluster:
        rows = Cluster.objects.filter(name=name) if name else Cluster.objects.all()
        found = list(rows[:2])
        if len(found) != 1:
            known = ", ".join(Cluster.objects.values_list("name", flat=True)) or "none yet"
            raise CommandError(f"name one cluster with --cluster; known: {known}")
        return found[0]
