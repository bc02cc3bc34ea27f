"""Identity files and the user's configuration (docs/formats.md section 1). Kept light: the wrapper imports it."""

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from worker_hooks.protocol.identity import is_run_id, task_run_id, token_digest

_REGISTERED = (
    "run_id",
    "name",
    "user",
    "cluster",
    "slurm_job_id",
    "array",
    "submitted_at",
    "argv",
    "script",
    "script_digest",
    "checkpoint_root",
)


class IdentityError(ValueError):
    """An identity or configuration file that cannot be used; the text names it."""


@dataclass
class Identity:
    """What one submission is known by. `path` is where it was read from or is to be written. `array`: the tasks as
    sbatch was given them; each task is a training job of its own, all have this file."""

    run_id: str
    token: str
    path: Path
    url: str | None = None
    user: str = ""
    name: str = ""
    submitted_at: float = 0.0
    registered: bool = False
    slurm_job_id: str | None = None
    cluster: str | None = None
    array: str | None = None
    argv: list[str] | None = None
    script: str | None = None
    script_digest: str | None = None
    checkpoint_root: str | None = None

    def save(self) -> None:
        """Atomically, mode 0600, folder 0700: nobody else ever sees the token. Raises OSError."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = {"version": 1, **asdict(self)}
        del data["path"]
        aside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
        aside.rename(self.path)

    def registration(self) -> dict[str, Any]:
        """The body of `POST /api/v1/register`: the token's digest, never the token."""
        known = {name: getattr(self, name) for name in _REGISTERED}
        return {"protocol": 1, "token_sha256": token_digest(self.token), **known}

    def run_id_in(self, environ: Mapping[str, str]) -> str | None:
        """The run id of a job of this submission; None for an array's outside of a task."""
        if self.array is None:
            return self.run_id
        task = environ.get("SLURM_ARRAY_TASK_ID", "")
        return task_run_id(self.run_id, int(task)) if task.isdecimal() else None


def load_identity(path: Path) -> Identity:
    """Raises IdentityError if the file is missing, malformed, or readable by others."""
    try:
        with path.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise IdentityError(f"{path}: others can read it (mode must be 0600); its token is not used")
            data = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, IdentityError):
            raise
        raise IdentityError(f"{path}: {error}") from error
    if not isinstance(data, dict) or not is_run_id(data.get("run_id")) or not isinstance(data.get("token"), str):
        raise IdentityError(f"{path}: not an identity file")
    for name in ("url", "array"):
        if not isinstance(data.get(name), str | None):
            raise IdentityError(f"{path}: not an identity file: its {name} is no text")
    known = {item.name for item in fields(Identity)} - {"path"}
    return Identity(path=path, **{key: value for key, value in data.items() if key in known})


def state_folder(environ: Mapping[str, str]) -> Path:
    if environ.get("RELUME_STATE_DIR"):
        return Path(environ["RELUME_STATE_DIR"])
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"]) / "relume"
    return _home(environ) / ".local" / "state" / "relume"


@dataclass(frozen=True)
class UserConfig:
    url: str | None
    api_token: str | None


def user_config(environ: Mapping[str, str]) -> UserConfig:
    """`~/.config/relume/config.json` under `RELUME_URL` and `RELUME_API_TOKEN`; an unreadable file counts as none."""
    data: Any = {}
    folder = Path(environ["XDG_CONFIG_HOME"]) if environ.get("XDG_CONFIG_HOME") else _home(environ) / ".config"
    with suppress(OSError, ValueError, RecursionError):
        data = json.loads((folder / "relume" / "config.json").read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        data = {}
    known = {key: value for key, value in data.items() if isinstance(value, str)}
    return UserConfig(
        url=environ.get("RELUME_URL") or known.get("url"),
        api_token=environ.get("RELUME_API_TOKEN") or known.get("api_token"),
    )


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or "~").expanduser()
