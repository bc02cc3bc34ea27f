"""The vendored browser files are the chosen ones, with their licence, and the pages name what is there."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[2]
VENDOR = ROOT / "dashboard" / "static" / "vendor"


def test_every_file_has_its_digest() -> None:
    script = ROOT / "deploy" / "setup" / "vendor_assets.py"
    command = [sys.executable, str(script), "--check"]
    checked = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_every_package_has_its_licence_and_is_used() -> None:
    pages = "".join(p.read_text() for p in (ROOT / "dashboard" / "templates").rglob("*.html"))
    for package in VENDOR.iterdir():
        assert (package / "LICENSE").is_file()
        assert f"vendor/{package.name}/" in pages
