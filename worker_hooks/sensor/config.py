"""`/etc/relume/sensor.json`, read strictly: what is wrong with it is said by its key."""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DEFAULT_PATH = Path("/etc/relume/sensor.json")
FORBIDDEN_MODE = 0o077


class ConfigError(Exception):
    """The configuration cannot be used; the text names file and key."""


@dataclass(frozen=True)
class Config:
    """`history_s`: how far back into this boot's kernel log the first start looks. `gpus`: how many this host has,
    where the site says so. `interfaces`: those of the training network."""

    url: str
    token: str
    node: str
    interval_s: float = 5.0
    spool: Path = Path("/var/lib/relume-sensor")
    root: Path = Path("/")
    kernel_log: Path = Path("/dev/kmsg")
    interfaces: tuple[str, ...] = ()
    history_s: float = 600.0
    gpus: int | None = None


def read_config(path: Path) -> Config:
    """Raises ConfigError. The file holds a credential: others may not read it."""
    try:
        if path.stat().st_mode & FORBIDDEN_MODE:
            raise ConfigError(f"{path}: others may read it, and it holds a token: chmod 600")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected an object")
    try:
        return _config(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _config(data: Mapping[str, Any]) -> Config:
    unknown = sorted(set(data) - set(Config.__dataclass_fields__))
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such key")
    default = Config("", "", "")
    url = _text(data, "url")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ConfigError("url: expected http://host:port or https://host")
    return Config(
        url=url,
        token=_text(data, "token"),
        node=_text(data, "node") if "node" in data else socket.gethostname().partition(".")[0],
        interval_s=_seconds(data, "interval_s", default.interval_s, 0.1),
        spool=_path(data, "spool", default.spool),
        root=_path(data, "root", default.root),
        kernel_log=_path(data, "kernel_log", default.kernel_log),
        interfaces=_names(data, "interfaces"),
        history_s=_seconds(data, "history_s", default.history_s, 0.0),
        gpus=_count(data, "gpus"),
    )


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.strip() or any(c.isspace() for c in value.strip()):
        raise ConfigError(f"{key}: expected a text without blanks")
    return value.strip()


def _path(data: Mapping[str, Any], key: str, default: Path) -> Path:
    path = Path(_text(data, key)) if key in data else default
    if not path.is_absolute():
        raise ConfigError(f"{key}: expected an absolute path")
    return path


def _seconds(data: Mapping[str, Any], key: str, default: float, least: float) -> float:
    value = data.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 86400:
        raise ConfigError(f"{key}: expected {least:g} to 86400 seconds")
    return float(value)


def _names(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(name, str) and name and "/" not in name for name in value):
        raise ConfigError(f"{key}: expected a list of names of interfaces")
    return tuple(value)


def _count(data: Mapping[str, Any], key: str) -> int | None:
    value = data.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 64):
        return value
    raise ConfigError(f"{key}: expected a number from 0 to 64")
