"""Run ids, tokens and their digests (docs/formats.md, section 1).

Every task of an array is a training job of its own: its run id is that of the submission with the task's number behind
it. sbatch gives all tasks one environment, so `RELUME_RUN_ID` holds a mark in the number's place, as sbatch's file
names do; whoever reads the name without knowing the mark finds no run id, and never another task's.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping

RUN_ID = re.compile(r"(?P<base>tj-[0-9a-f]{12})(?:-(?P<task>0|[1-9][0-9]{0,9}))?")
ANY_TASK = "-%a"
FORM = "tj- and 12 hex digits, in an array a dash and the task's number"


def new_run_id() -> str:
    """A fresh run id: `tj-` and 12 hex digits (48 random bits: no collision to fear below millions of runs)."""
    return "tj-" + secrets.token_hex(6)


def is_run_id(text: object) -> bool:
    return isinstance(text, str) and RUN_ID.fullmatch(text) is not None


def task_run_id(base: str, task: int) -> str:
    return f"{base}-{task}"


def split_run_id(run_id: str) -> tuple[str, int | None]:
    """(the submission's run id, the task's number or None). ValueError for what is no run id."""
    found = RUN_ID.fullmatch(run_id)
    if found is None:
        raise ValueError(f"{run_id[:40]!r} is not of the form {FORM}")
    return found["base"], None if found["task"] is None else int(found["task"])


def own_run_id(environ: Mapping[str, str]) -> str | None:
    """The run id that a process's environment names; None if it names none, or an array's outside of a task."""
    given = environ.get("RELUME_RUN_ID", "")
    if given.endswith(ANY_TASK):
        given = given.removesuffix(ANY_TASK) + "-" + environ.get("SLURM_ARRAY_TASK_ID", "")
    return given if is_run_id(given) else None


def new_token() -> str:
    """A bearer token of 256 random bits, URL-safe."""
    return secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    """What the controller stores. A plain SHA-256 is enough: the token is random, so there is nothing to guess."""
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()
