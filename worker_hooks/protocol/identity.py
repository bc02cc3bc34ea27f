"""Run ids, tokens and their digests (docs/formats.md, section 1)."""

import hashlib
import re
import secrets

RUN_ID = re.compile(r"tj-[0-9a-f]{12}")


def new_run_id() -> str:
    """A fresh run id: `tj-` and 12 hex digits (48 random bits: no collision to fear below millions of runs)."""
    return "tj-" + secrets.token_hex(6)


def is_run_id(text: object) -> bool:
    return isinstance(text, str) and RUN_ID.fullmatch(text) is not None


def new_token() -> str:
    """A bearer token of 256 random bits, URL-safe."""
    return secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    """What the controller stores. A plain SHA-256 is enough: the token is random, so there is nothing to guess."""
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()
