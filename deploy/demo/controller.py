"""The demonstration's controller: `manage.py up` as a site would run it, and its API as the job's owner uses it."""

import json
import os
import pwd
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from deploy.demo.site_folder import Site
from deploy.lab.cluster import Lab

POLICY = """mode = "act"
[ceilings]
max_nodes_out = 2
max_fraction_out = 0.5
"""


class ControllerError(RuntimeError):
    """The controller did not start or did not answer; the text says where its log is."""


class Controller:
    """One `manage.py up` on the lab's management address, SQLite, embedded broker, mode `act`."""

    def __init__(self, lab: Lab, site: Site, port: int | None = None) -> None:
        self.lab, self.site = lab, site
        self.port = port or _free_port(lab.management_host)
        self.url = f"http://{lab.management_host}:{self.port}"
        self.home = site.folder / "relume"
        self.log = site.folder / "controller.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "SLURM_CONF": self.lab.conf,
            "RELUME_HOME": str(self.home),
            "RELUME_POLICY": str(self.site.folder / "policy.toml"),
            "RELUME_WORKER_USER": self.lab.users["controller"],
            "RELUME_WEB_USER": self.lab.users["web"],
            "RELUME_ALLOWED_HOSTS": f"{self.lab.management_host},localhost,127.0.0.1",
            "DATABASE_URL": f"sqlite:////{str(self.home).lstrip('/')}/relume.sqlite3",
            **self.site.environment,
        }

    def start(self, timeout_s: float = 90) -> None:
        (self.site.folder / "policy.toml").write_text(POLICY)
        listen = f"{self.lab.management_host}:{self.port}"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.site.python, self.site.code / "manage.py", "up", "--listen", listen],
                env=self.environment,
                cwd=self.site.code,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            if self.healthy():
                return
            time.sleep(0.3)
        raise ControllerError(f"the controller did not start; its log is {self.log}:\n{self.tail()}")

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/health", timeout=3) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def first_login(self) -> str:
        """The line in which `up` printed the first admin's login, for the reader of the demonstration."""
        lines = self.log.read_text(errors="replace").splitlines()
        return next((line.strip() for line in lines if "password" in line), "")

    def manage(self, *argv: str) -> str:
        """One management command as the controller's user. Raises ControllerError with what it said."""
        user = self.lab.users["controller"]
        drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        done = subprocess.run(
            [*drop, self.site.python, self.site.code / "manage.py", *argv],
            env=self.environment, cwd=self.site.code, capture_output=True, text=True, timeout=60, check=False,
            umask=0o007,
        )  # fmt: skip
        if done.returncode:
            raise ControllerError(f"manage.py {' '.join(argv)}: {done.stderr.strip()[-800:]}")
        return done.stdout

    def token(self, user: str, scope: str) -> str:
        """A fresh API token: the last word that `create_token` prints."""
        return self.manage("create_token", user, "--scope", scope).split()[-1]

    def get(self, path: str, token: str) -> dict[str, Any] | None:
        """The JSON at `path`; None while the controller cannot answer (the demonstration waits, it does not guess)."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise ControllerError(f"{path}: {error.code} {error.read(400)!r}") from None
        except OSError:
            return None

    def stop(self, timeout_s: float = 20) -> None:
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def write_user_config(home: Path, owner: str, url: str, token: str) -> None:
    """`~/.config/relume/config.json` of the job's owner, as `relume` reads it (0600)."""
    folder = home / ".config" / "relume"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.json"
    config.touch(mode=0o600)
    config.write_text(json.dumps({"url": url, "api_token": token}))
    for path in (home / ".config", folder, config):
        os.chown(path, *_ids(owner))


def _ids(user: str) -> tuple[int, int]:
    entry = pwd.getpwnam(user)
    return entry.pw_uid, entry.pw_gid


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
