"""The policy file (docs/formats.md section 7): TOML in, the decision core's Policy out."""

import tomllib
from dataclasses import replace
from pathlib import Path

from controller.decision.policy import MODES, Policy, PolicyError, policy_from
from controller.knowledge.load import KnowledgeError
from controller.knowledge.load import load as load_knowledge


def load(path: str, mode: str = "", knowledge: str = "") -> Policy:
    """`path` empty: the defaults. `mode` wins over the file's. `knowledge`: a file of overrides of what signs mean,
    empty: none. Raises PolicyError that names file and key."""
    policy = _read(Path(path)) if path else Policy()
    try:
        policy = replace(policy, knowledge=load_knowledge(Path(knowledge) if knowledge else None))
    except KnowledgeError as error:
        raise PolicyError(str(error)) from error
    if not mode:
        return policy
    if mode not in MODES:
        raise PolicyError(f"mode: {mode!r} is none of {', '.join(MODES)}")
    return replace(policy, mode=mode)


def _read(path: Path) -> Policy:
    try:
        return policy_from(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PolicyError(f"{path}: not TOML: {error}") from error
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from error
