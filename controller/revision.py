"""Which code decided: the version, and the revision of the checkout where there is one (read without starting git)."""

from functools import lru_cache
from pathlib import Path

from worker_hooks._version import __version__

ROOT = Path(__file__).resolve().parent.parent


@lru_cache(maxsize=1)
def code_version() -> str:
    """As in `0.1.0+1a2b3c4d5e6f`."""
    revision = _revision(ROOT / ".git")
    return f"{__version__}+{revision[:12]}" if revision else __version__


def _revision(git: Path) -> str:
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        loose = git / name
        if loose.exists():
            return loose.read_text().strip()
        packed = (git / "packed-refs").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split()[0] for line in packed if line.endswith(" " + name)), "")
