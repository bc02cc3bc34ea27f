"""A site in the lab's folder: an environment and the code that the lab's users may read.

The checkout may lie below a closed home (0700), which neither the jobs' owner nor the controller's user can enter. So
the virtual environment is hard-linked (or copied, on another file system) into the lab's folder, and the code copied
beside it; `python` is found from the environment's own place, so it works wherever it lies. `lab down` removes both.
"""

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("worker_hooks", "controller", "dashboard", "examples", "manage.py")
# Tools of the checkout that neither jobs nor controller run.
LEFT_OUT = {"playwright", "axe_playwright_python", "mypy", "ruff", "share", "include", ".ready"}


@dataclass(frozen=True)
class Site:
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "env" / "bin" / "python"

    @property
    def code(self) -> Path:
        return self.folder / "code"

    @property
    def environment(self) -> dict[str, str]:
        """What a process of the site needs to find the code; the checkout itself need not be readable."""
        return {"PYTHONPATH": str(self.code), "PYTHONDONTWRITEBYTECODE": "1"}


def make(folder: Path, venv: Path) -> Site:
    """Fill `folder` (made here, mode 0755). Takes a few seconds. Raises OSError when the disk is full."""
    site = Site(folder)
    folder.mkdir(mode=0o755)
    shutil.copytree(venv, folder / "env", symlinks=True, ignore=_left_out, copy_function=_link)
    site.code.mkdir(mode=0o755)
    for name in CODE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, site.code / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, site.code / name)
    _open_for_reading(site.code)
    return site


def _left_out(_: str, names: Iterable[str]) -> set[str]:
    return {name for name in names if name in LEFT_OUT or name.startswith(("__editable__", "playwright-"))}


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _open_for_reading(folder: Path) -> None:
    """A checkout made under a strict umask is copied with its modes: open the copy to every user."""
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | (0o055 if stat.S_ISDIR(mode) else 0o044))
