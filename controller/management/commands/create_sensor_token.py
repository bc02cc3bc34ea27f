"""`manage.py create_sensor_token NODES [--out DIR --url URL] [--cluster NAME] [--revoke]`: one credential per node."""

import json
import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from controller.clock import utcnow
from controller.ingest.ranges import NODE_NAME
from controller.models import Cluster, NodeSensor
from controller.slurm import hostlist
from worker_hooks.protocol.identity import new_token, token_digest


class Command(BaseCommand):
    help = (
        "Makes the tokens of node sensors, one for each node of a host list, printed once or written as sensor.json "
        "files (0600). Only digests are stored; a new token replaces the node's old one."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("nodes", help="host list, as in Slurm: gpu[1-4]")
        parser.add_argument("--out", default="", help="write DIR/<node>/sensor.json instead of printing the tokens")
        parser.add_argument("--url", default="", help="the controller's address for sensor.json, as the nodes reach it")
        parser.add_argument("--cluster", default="", help="needed only where there are several")
        parser.add_argument("--revoke", action="store_true", help="end the tokens of these nodes")

    def handle(self, *args: Any, **options: Any) -> None:
        names = self._names(options["nodes"])
        cluster = self._cluster(options["cluster"])
        if options["revoke"]:
            ended = NodeSensor.objects.filter(cluster=cluster, node__in=names).update(token_digest="")
            self.stderr.write(f"{ended} of {len(names)} sensors may not report any more")
            return
        if options["out"] and not options["url"]:
            raise CommandError("--out needs --url: a sensor must know where to report")
        tokens = {name: new_token() for name in names}
        if options["out"]:  # first: a token that nobody could be given must not replace a good one
            for name, token in tokens.items():
                self._write(Path(options["out"]) / name / "sensor.json", options["url"], name, token)
        self._store(cluster, tokens)
        if options["out"]:
            self.stderr.write(f"{len(names)} files below {options['out']}: each to /etc/relume/sensor.json of its node")
            return
        for name, token in tokens.items():
            self.stdout.write(f"{name} {token}")
        self.stderr.write("these tokens are not shown again")

    def _names(self, text: str) -> list[str]:
        try:
            names = list(dict.fromkeys(hostlist.expand(text)))
        except ValueError as error:
            raise CommandError(str(error)) from error
        wrong = [name for name in names if not NODE_NAME.fullmatch(name) or name in (".", "..")]
        if wrong or not names:
            raise CommandError(f"{wrong[0]!r} is not a node name" if wrong else "no nodes in that host list")
        return names

    def _cluster(self, name: str) -> Cluster:
        name = name or settings.RELUME_CLUSTER
        if name:
            return Cluster.objects.get_or_create(name=name)[0]
        known = list(Cluster.objects.all()[:2])
        if len(known) != 1:
            raise CommandError("which cluster? Name it with --cluster, or set RELUME_CLUSTER")
        return known[0]

    def _store(self, cluster: Cluster, tokens: dict[str, str]) -> None:
        with transaction.atomic():
            for name, token in tokens.items():
                NodeSensor.objects.update_or_create(
                    cluster=cluster,
                    node=name,
                    defaults={"token_digest": token_digest(token)},
                    create_defaults={"token_digest": token_digest(token), "created_at": utcnow()},
                )

    def _write(self, path: Path, url: str, node: str, token: str) -> None:
        """Made anew with 0600 and renamed: a file that others could read, or a link somewhere, is never written."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside = path.with_name(f".{path.name}.{os.getpid()}")
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump({"url": url, "token": token, "node": node}, file)
            aside.rename(path)
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from error
