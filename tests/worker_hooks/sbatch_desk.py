"""A user's account around a fake sbatch that writes down how it was called."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.worker_hooks.controller_double import ControllerDouble

FAKE = """\
#!{python}
import json, os, sys, time
data = "" if sys.stdin is None or sys.stdin.isatty() or "READ" not in os.environ else sys.stdin.read()
identity = os.environ.get("RELUME_IDENTITY")
there = bool(identity) and os.path.exists(identity)
with open({record!r}, "w") as file:
    json.dump({{"argv": sys.argv[1:], "environ": dict(os.environ), "stdin": data, "identity_there": there}}, file)
sys.stderr and sys.stderr.write("sbatch: a site's warning\\n")
sys.stdout.write(os.environ.get("FAKE_OUTPUT", "Submitted batch job 77\\n"))
sys.exit(int(os.environ.get("FAKE_CODE", "0")))
"""
WRAPPER = "import sys; from worker_hooks.cli.main import main; sys.exit(main())"
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Desk:
    """A user's account: home, script, configuration, and the fake sbatch in PATH."""

    folder: Path
    controller: ControllerDouble
    environ: dict[str, str] = field(default_factory=dict)

    def submit(self, *argv: str, stdin: str | None = None, **environ: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", WRAPPER, "sbatch", *argv],
            check=False,
            env={**self.environ, **environ},
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=30,
        )

    @property
    def call(self) -> dict[str, Any]:
        """How sbatch was called."""
        data: dict[str, Any] = json.loads((self.folder / "call.json").read_text(encoding="utf-8"))
        return data

    @property
    def called(self) -> bool:
        return (self.folder / "call.json").exists()

    @property
    def identities(self) -> list[Path]:
        return sorted((self.folder / "state" / "identities").glob("*.json"))

    @property
    def identity(self) -> dict[str, Any]:
        (path,) = self.identities
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return data


def open_desk(tmp_path: Path) -> Iterator[Desk]:
    controller = ControllerDouble()
    made = Desk(tmp_path, controller)
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "sbatch"
    fake.write_text(FAKE.format(python=sys.executable, record=str(tmp_path / "call.json")), encoding="utf-8")
    fake.chmod(0o755)
    (tmp_path / "train.sh").write_text("#!/bin/sh\n#SBATCH -J mosaic\nsrun train\n", encoding="utf-8")
    made.environ = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(REPOSITORY),
        "RELUME_STATE_DIR": str(tmp_path / "state"),
        "RELUME_URL": controller.url,
        "RELUME_API_TOKEN": "user-token",
    }
    yield made
    controller.away()
