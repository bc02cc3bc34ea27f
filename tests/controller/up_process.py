"""A real `manage.py up` as a subprocess on a home of its own, with the in-memory Slurm, and what its processes do."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from controller.environment import ROOT

LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
NAMES = {
    "valkey": "valkey-server",
    "web": "gunicorn",
    "worker-decide": "worker-decide@",
    "worker-actions": "worker-actions@",
    "beat": " beat ",
}


def until(what: str, happened: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    end = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what}"
        time.sleep(0.1)


@dataclass(frozen=True)
class Proc:
    pid: int
    ppid: int
    uid: int
    args: str


def processes() -> dict[int, Proc]:
    """Every process that is not a zombie."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            args = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            owner = entry.stat().st_uid
        except OSError:
            continue
        if stat[0] != "Z":
            found[int(entry.name)] = Proc(int(entry.name), int(stat[1]), owner, args)
    return found


@dataclass
class Up:
    """`environment`: on top of a clean one. The log and the ready file lie beside the home, in `folder`."""

    folder: Path
    database: str
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ("--listen", "127.0.0.1:0")
    python: Path = Path(sys.executable)
    code: Path = ROOT
    process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def ready_file(self) -> Path:
        return self.folder / "ready.json"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def url(self) -> str:
        return str(json.loads(self.ready_file.read_text())["url"])

    def full_environment(self) -> dict[str, str]:
        fixed = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "RELUME_HOME": str(self.home)}
        fixed |= {"SLURM_ADAPTER": f"fake:{self.folder / 'slurm' / 'fake.json'}", "DATABASE_URL": self.database}
        return fixed | {"PYTHONDONTWRITEBYTECODE": "1"} | self.environment

    def start(self, ready: bool = True) -> "Up":
        (self.folder / "slurm").mkdir(mode=0o777, exist_ok=True)
        (self.folder / "slurm").chmod(0o777)
        self.ready_file.unlink(missing_ok=True)
        argv = [str(self.python), str(self.code / "manage.py"), "up", "--ready-file", str(self.ready_file)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*argv, *self.arguments],
                cwd=self.code,
                env=self.full_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if ready:
            until(f"ready\n{self.log}", lambda: self.ready_file.exists() or self.over())
            assert not self.over(), self.log
        return self

    def over(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def run_to_end(self) -> int:
        self.start(ready=False)
        assert self.process is not None
        return self.process.wait(LIMIT_S)

    def children(self) -> dict[str, Proc]:
        """The direct children of `up`, by name."""
        assert self.process is not None
        mine = [p for p in processes().values() if p.ppid == self.process.pid]
        return {name: p for name, mark in NAMES.items() for p in mine if mark in p.args}

    def family(self) -> set[int]:
        """Every descendant, `up` included."""
        assert self.process is not None
        everybody, family = processes(), {self.process.pid}
        while True:
            more = {p.pid for p in everybody.values() if p.ppid in family} - family
            if not more:
                return family
            family |= more

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def stop(self) -> int:
        """Ctrl-C as a terminal sends it: to the whole foreground group."""
        assert self.process is not None
        if not self.over():
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            return self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(STOP_LIMIT_S)
            raise

    def health(self) -> dict[str, object] | None:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/health", timeout=5) as answer:
                found: dict[str, object] = json.load(answer)
                return found
        except (OSError, urllib.error.URLError):
            return None

    def viewed_since(self, began: float) -> bool:
        """Did a sweep read Slurm after `began`? Then beat, broker, the deciding worker, database and web all work."""
        health = self.health()
        age = health["view_age_s"] if health else None
        return isinstance(age, float) and time.time() - age > began
