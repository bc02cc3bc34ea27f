"""The recorded traces of others. They lie beside the project, are read in place and never become part of it."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def shared_data() -> Path:
    """`../shared/data`, beside this checkout or beside the one that it was cloned from. Fails the test without it."""
    places = [ROOT, *_origin()]
    for place in places:
        if (place.parent / "shared" / "data").is_dir():
            return place.parent / "shared" / "data"
    pytest.fail(f"no folder shared/data beside {' or '.join(map(str, places))}")


def _origin() -> list[Path]:
    asked = subprocess.run(
        ["git", "config", "--get", "remote.origin.url"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=10,
    )
    path = Path(asked.stdout.strip())
    return [path] if asked.returncode == 0 and path.is_absolute() else []
