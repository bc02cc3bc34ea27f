"""What a script may say wrong about its run: each error names the value and what to write instead."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from worker_hooks.training.options import Options
from worker_hooks.training.settings import read_settings

pytestmark = pytest.mark.torch
RUN_ID = "tj-00000000000a"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"checkpoint_evry": 5}, "Run has no option 'checkpoint_evry': did you mean checkpoint_every?"),
        ({"zeal": 1}, "Run has no option 'zeal': there are root, run_id, checkpoint_every,"),
    ],
)
def test_an_option_that_there_is_not(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        Options.of(given)


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("checkpoint_every", -1, 0),
        ("checkpoint_every", 2.5, 0),
        ("keep", 0, 1),
        ("keep_local", 0, 1),
        ("local_every", 2.5, 0),
        ("local_every", float("inf"), 0),
        ("local_every", [5], 0),
        ("total_steps", 0, 1),
        ("accumulation", True, 1),
        ("host_memory", "8G", 1),
    ],
)
def test_a_number_that_cannot_be_meant(name: str, value: Any, least: int) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r}: a whole number, at least {least}")):
        Options.of({name: value})


def test_what_is_left_open_and_what_is_not_a_number() -> None:
    given = {"checkpoint_every": "auto", "total_steps": None, "host_memory": 1 << 30, "waive": ["scheduler"]}
    assert Options.of(given) == Options(**given)


def test_under_an_agent_the_run_stays_where_the_agent_has_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    agent = {"RELUME_GENERATION": "2", "RELUME_CHECKPOINT_ROOT": str(root), "RELUME_RUN_ID": RUN_ID}
    with pytest.raises(ValueError, match=f"relume run --checkpoint-root {tmp_path}/mine"):
        read_settings(agent, root=tmp_path / "mine")
    with pytest.raises(ValueError, match="RELUME_RUN_ID=tj-00000000000b for `relume run`"):
        read_settings(agent, run_id="tj-00000000000b")
    (tmp_path / "link").symlink_to(root)
    root.mkdir()
    assert read_settings(agent, root=tmp_path / "link", run_id=RUN_ID).run_id == RUN_ID
    assert read_settings({**agent, "RELUME_GENERATION": ""}, root=tmp_path / "mine").root == tmp_path / "mine"


def test_the_documentation_lists_every_option_with_its_default() -> None:
    text = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)=([^`]+)` \|", text, re.M))
    assert {field.name: repr(field.default).replace("'", '"') for field in fields(Options)} == table
