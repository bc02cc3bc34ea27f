"""Version 1 of manifest, rank file and generation file is golden: these files must stay readable for ever."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_hooks.protocol import manifest as schema
from worker_hooks.protocol.messages import MessageError

pytestmark = pytest.mark.pure

GOLDEN = Path(__file__).parent / "golden"
CODECS: dict[str, tuple[Callable[[object], Any], Callable[[Any], dict[str, Any]]]] = {
    "rank_file": (schema.decode_rank_file, schema.encode_rank_file),
    "manifest": (schema.decode_manifest, schema.encode_manifest),
    "generation": (schema.decode_generation, schema.encode_generation),
}


def golden(kind: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((GOLDEN / f"{kind}-v1.json").read_text())
    return data


@pytest.mark.parametrize("kind", CODECS)
def test_golden_files_decode_and_come_back(kind: str) -> None:
    decode, encode = CODECS[kind]
    data = golden(kind)
    value = decode(data)
    del data["key_of_a_later_version"]
    assert json.loads(json.dumps(encode(value))) == data
    assert decode(encode(value)) == value


@pytest.mark.parametrize("kind", CODECS)
def test_a_newer_version_is_refused_and_says_so(kind: str) -> None:
    with pytest.raises(MessageError, match="newer than this reader"):
        CODECS[kind][0]({**golden(kind), "version": 2})


@pytest.mark.parametrize("kind", CODECS)
def test_each_missing_required_key_is_named(kind: str) -> None:
    data = golden(kind)
    for key in set(data) - {"key_of_a_later_version", "config_digest", "losses", "state"}:
        broken = {k: v for k, v in data.items() if k != key}
        with pytest.raises(MessageError, match=rf"\.{key}: (missing|expected)"):
            CODECS[kind][0](broken)


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("content", [None, [], "text", 1, {}])
def test_other_json_is_refused(kind: str, content: object) -> None:
    with pytest.raises(MessageError):
        CODECS[kind][0](content)


@pytest.mark.parametrize("name", ["/etc/passwd", "../step-00000001.g1/x", "a/../../b", "", "a\0b"])
def test_a_file_name_never_leaves_the_folder(name: str) -> None:
    data = golden("rank_file")
    data["files"][0]["name"] = name
    with pytest.raises(MessageError, match="not a path inside"):
        schema.decode_rank_file(data)


@pytest.mark.parametrize("digest", ["md5:00", "crc32:xyz", "0" * 32, "xxh3_128:00"])
def test_an_unknown_digest_is_refused(digest: str) -> None:
    data = golden("rank_file")
    data["files"][0]["digest"] = digest
    with pytest.raises(MessageError, match="known algorithm"):
        schema.decode_rank_file(data)


def test_a_manifest_lists_every_rank_in_order() -> None:
    data = golden("manifest")
    data["ranks"].reverse()
    with pytest.raises(MessageError, match="ranks 0 to 1"):
        schema.decode_manifest(data)


@given(st.integers(0, 10**12), st.integers(1, 10**9))
def test_folder_names_round_trip(step: int, generation: int) -> None:
    assert schema.parse_folder(schema.folder_name(step, generation)) == (step, generation)


@pytest.mark.parametrize("name", ["latest", "step-1.g1", "step-00000001", "step-00000001.g1.old", "losses", ".trash"])
def test_other_names_are_no_checkpoint(name: str) -> None:
    assert schema.parse_folder(name) is None


def test_the_acceptance_rule() -> None:
    newest = schema.decode_generation(golden("generation"))
    assert schema.accepts(newest, "step-00000999.g3")
    assert schema.accepts(newest, "step-00000120.g2")
    assert not schema.accepts(newest, "step-00000140.g2")
    assert not schema.accepts(newest, "step-00000140.g4")
    assert not schema.accepts(newest, "latest")
