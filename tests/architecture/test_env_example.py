"""deploy/env.example names every environment variable that the controller reads, and no other."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[2]
READ = re.compile(r'env\.(?:text|flag|choice|path|broker|run_as)\(\s*"([A-Z_]+)"')
NAMED = re.compile(r"^#?([A-Z][A-Z_]+)=", re.MULTILINE)


def test_every_name_that_is_read_is_explained_and_none_is_left_over() -> None:
    sources = [*(ROOT / "controller").rglob("*.py"), *(ROOT / "dashboard").rglob("*.py")]
    read = {name for source in sources for name in READ.findall(source.read_text(encoding="utf-8"))}
    named = NAMED.findall((ROOT / "deploy" / "env.example").read_text(encoding="utf-8"))
    assert set(named) == read and len(named) == len(set(named))
    assert {"DATABASE_URL", "RELUME_HOME", "RELUME_WEB_USER", "RELUME_LISTEN"} <= read
