"""`manage.py up`: web, workers, beat and embedded broker in one foreground process group."""

import http.client
import json
import socket
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controller import environment as env
from controller.up import listening, valkey
from controller.up.accounts import Accounts, UpError, check_reach, choose
from controller.up.first_steps import manage
from controller.up.home import Home
from controller.up.plan import Plan, child_environment
from controller.up.supervisor import Supervisor

BROKER_LIMIT_S = 20.0
WEB_LIMIT_S = 60.0
DEFAULT_LISTEN = "127.0.0.1:8765"


class Command(BaseCommand):
    help = "Run Relume: web, workers, beat and, without REDIS_URL, an embedded Valkey. Ctrl-C stops all of it."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--listen", action="append", metavar="ADDR:PORT", help="may be given several times")
        parser.add_argument("--one-worker", action="store_true", help="one worker for both queues (small machines)")
        parser.add_argument("--ready-file", type=Path, help="written (JSON) when the web answers")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._up(options)
        except (UpError, OSError) as error:  # a file of RELUME_HOME that is somebody else's names itself
            raise CommandError(str(error)) from None
        except KeyboardInterrupt:  # before there were children; later it is the supervisor's
            raise CommandError("interrupted before it was ready", returncode=130) from None

    def _say(self, text: str) -> None:
        self.stdout.write(f"relume up: {text}")
        self.stdout.flush()

    def _up(self, options: dict[str, Any]) -> None:
        given = options["listen"] or [env.text("RELUME_LISTEN", DEFAULT_LISTEN)]
        addresses = [env.address("--listen" if options["listen"] else "RELUME_LISTEN", text) for text in given]
        accounts = choose(env.text("RELUME_WEB_USER", ""), env.text("RELUME_WORKER_USER", ""))
        for warning in accounts.warnings:
            self._say(f"WARNING: {warning}")
        if options["ready_file"] is not None:
            options["ready_file"].unlink(missing_ok=True)
        home = Home(settings.RELUME_HOME, accounts)
        home.prepare()
        home.make_key()
        sockets = listening.open_sockets(addresses)
        broker = None if env.text("REDIS_URL", "") else home.socket_folder()
        known = self._found_out(addresses, broker)
        self._first_steps(home, accounts, known)
        plan = Plan(accounts, known, home.key_file)
        supervisor = Supervisor(self._say)
        supervisor.begin()
        try:
            self._start(supervisor, plan, sockets, broker, options)
            supervisor.run()
        finally:
            supervisor.stop()
            if broker is not None:
                valkey.socket_path(broker).unlink(missing_ok=True)
        self._say("stopped")

    def _found_out(self, addresses: list[env.Address], broker: Path | None) -> dict[str, str]:
        more = {"RELUME_HOME": str(settings.RELUME_HOME)}
        if broker is not None:
            more["REDIS_URL"] = valkey.url(broker)
        if not env.text("RELUME_ALLOWED_HOSTS", ""):
            more["RELUME_ALLOWED_HOSTS"] = listening.allowed_hosts(addresses)
        return child_environment(more)

    def _first_steps(self, home: Home, accounts: Accounts, known: dict[str, str]) -> None:
        for account in dict.fromkeys((accounts.web, accounts.worker)):
            check_reach(account, {"the code": env.ROOT / "manage.py", "Python": Path(sys.executable)})
            check_reach(account, {"RELUME_HOME": home.folder})
        database = settings.DATABASES["default"]
        if database["ENGINE"].endswith("sqlite3"):
            home.make_database_file(Path(database["NAME"]))
        manage(accounts.worker, known, "migrate", "--noinput", "-v0", "--skip-checks")
        self._password = manage(accounts.worker, known, "first_admin").strip()

    def _start(
        self,
        supervisor: Supervisor,
        plan: Plan,
        sockets: list[socket.socket],
        broker: Path | None,
        options: dict[str, Any],
    ) -> None:
        if broker is not None:
            supervisor.add(plan.broker(valkey.binary(), broker))
            if not supervisor.wait_for(lambda: valkey.answers(broker), BROKER_LIMIT_S) and not supervisor.stopping:
                raise UpError(f"the embedded broker did not answer within {BROKER_LIMIT_S:g} s")
        for spec in (plan.web([s.fileno() for s in sockets]), *plan.workers(options["one_worker"]), plan.beat()):
            if not supervisor.stopping:
                supervisor.add(spec)
        if supervisor.wait_for(lambda: _healthy(sockets[0]), WEB_LIMIT_S):
            self._announce(sockets, options["ready_file"])
        elif not supervisor.stopping:
            raise UpError(f"the web process did not answer within {WEB_LIMIT_S:g} s; its words are above")

    def _announce(self, sockets: list[socket.socket], ready_file: Path | None) -> None:
        urls = [listening.url_of(listener) for listener in sockets]
        self._say(f"ready at {' and '.join(urls)}")
        if self._password:
            self._say(f"first login: user admin, password {self._password} (shown this once)")
        if ready_file is not None:
            aside = ready_file.with_name(f".{ready_file.name}.new")
            aside.write_text(json.dumps({"url": urls[0], "urls": urls}) + "\n")
            aside.replace(ready_file)


def _healthy(listener: socket.socket) -> bool:
    host, port = listening.near_address(listener)
    connection = http.client.HTTPConnection(host, port, timeout=1.0)
    try:
        connection.request("GET", "/api/v1/health", headers={"Host": "localhost"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
