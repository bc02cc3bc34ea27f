"""Which children there are, with which arguments and environment."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.environment import ROOT
from controller.up import valkey
from controller.up.accounts import Accounts
from controller.up.children import Spec

CELERY_APP = "controller.celery:app"
WEB_PROCESSES, WEB_THREADS = 2, 8
QUEUES = ("decide", "actions")


@dataclass(frozen=True)
class Plan:
    """`environment` is what every child gets; the web process alone also gets the secret key's place."""

    accounts: Accounts
    environment: Mapping[str, str]
    key_file: Path

    def broker(self, server: Path, folder: Path) -> Spec:
        argv = valkey.arguments(server, folder, self.accounts.shared_gid is not None)
        return Spec("valkey", argv, self.accounts.worker, self.environment, folder, last=True)

    def web(self, descriptors: Sequence[int]) -> Spec:
        argv = [sys.executable, "-m", "gunicorn", "controller.wsgi:application"]
        for descriptor in descriptors:
            argv += ["--bind", f"fd://{descriptor}"]
        argv += ["--worker-class", "gthread", "--workers", str(WEB_PROCESSES), "--threads", str(WEB_THREADS)]
        argv += ["--timeout", "60", "--graceful-timeout", "3", "--log-level", "warning", "--no-control-socket"]
        argv += ["--worker-tmp-dir", "/dev/shm"]
        environment = {**self.environment, "RELUME_SECRET_KEY_FILE": str(self.key_file)}
        # QUIT ends gunicorn's workers at once, which is what is wanted when `up` itself was killed.
        return Spec(
            "web", argv, self.accounts.web, environment, ROOT, death_signal=signal.SIGQUIT, descriptors=descriptors
        )

    def worker(self, name: str, queues: Sequence[str]) -> Spec:
        argv = [
            sys.executable,
            "-m",
            "celery",
            "-q",
            "-A",
            CELERY_APP,
            "worker",
            "-n",
            f"{name}@relume",
            "-l",
            "WARNING",
        ]
        argv += ["-Q", ",".join(queues), "-c", "1", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        # QUIT is Celery's cold shutdown: a task that runs is given up, and its row says how far it came.
        return Spec(name, argv, self.accounts.worker, self.environment, ROOT, death_signal=signal.SIGQUIT)

    def workers(self, one: bool) -> list[Spec]:
        if one:
            return [self.worker("worker", QUEUES)]
        return [self.worker(f"worker-{queue}", (queue,)) for queue in QUEUES]

    def beat(self) -> Spec:
        """The schedule lives in the settings and in memory: no shelve file that could be damaged or grow stale."""
        argv = [sys.executable, "-m", "celery", "-q", "-A", CELERY_APP, "beat", "-l", "WARNING"]
        argv += ["-S", "celery.beat.Scheduler", "--pidfile="]
        return Spec("beat", argv, self.accounts.worker, self.environment, ROOT)


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Ours, without what only `up` itself reads, and with what it found out."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("RELUME_SECRET_KEY_FILE", "RELUME_LISTEN")}
    return {**inherited, "DJANGO_SETTINGS_MODULE": "controller.settings", "PYTHONUNBUFFERED": "1", **more}
