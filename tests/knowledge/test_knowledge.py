"""What signs mean: every code has a row, every row's samples are read so, overrides change what they name."""

from pathlib import Path

import pytest

from controller.decision.meanings import Knowledge
from controller.knowledge.load import KnowledgeError, load, overrides, site_recognisers
from controller.knowledge.tables import Samples, samples, shipped
from worker_hooks.signs.codes import CODES
from worker_hooks.signs.log import read_lines

pytestmark = pytest.mark.pure

LICENSE = """
[signature."site.license"]
pattern = 'license server \\S+ unreachable|no license left'
layer = "process"
about = "job"
weight = "strong"
verdict = "config"
text = "The license server did not answer"
yes = ["license server lic1 unreachable", "no license left"]
no = ["license server lic1 answered"]
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(text)
    return path


def test_every_code_has_a_row_and_every_row_a_code() -> None:
    assert CODES.keys() <= shipped().keys()
    rest = shipped().keys() - CODES.keys()
    assert rest and all(code.split(".")[0] in ("xid", "sxid") for code in rest)


@pytest.mark.parametrize("one", samples(), ids=lambda one: one.code)
def test_samples_are_read_as_their_rows_say(one: Samples) -> None:
    for line in one.yes:
        assert one.code in [sign.code for sign in read_lines(one.log, [line])], line
    for line in one.no:
        assert one.code not in [sign.code for sign in read_lines(one.log, [line])], line


def test_what_is_read_from_lines_has_samples() -> None:
    """Counters, states and what the progress side works out are not read from lines."""
    without = {code for code in CODES if not code.endswith("*")} - {one.code for one in samples()}
    families = {code.split(".")[0] for code in without}
    counted = {
        "gpu",
        "ib",
        "pcie",
        "link",
        "node",
        "sensor",
        "collective",
        "flight_recorder",
        "progress",
        "stack",
        "history",
    }
    assert families <= counted | {"loss", "slurm"}, without


@pytest.mark.parametrize(
    ("code", "weight", "verdict"),
    [
        ("xid.79", "hard", "gpu_hardware"),
        ("xid.13", "weak", "user_code"),
        ("xid.45", "cascade", "none"),
        ("xid.63", "context", "none"),
        ("xid.94", "strong", "gpu_hardware"),
        ("xid.109", "weak", "unknown"),
        ("xid.119", "strong", "node_failure"),
        ("xid.999", "weak", "unknown"),
        ("sxid.20034", "hard", "fabric"),
        ("nccl.remote_error", "cascade", "unknown"),
    ],
)
def test_what_codes_say(code: str, weight: str, verdict: str) -> None:
    row = load().of(code)
    assert row and (row.weight, row.verdict) == (weight, verdict)


def test_an_override_changes_one_row_only(tmp_path: Path) -> None:
    path = written(tmp_path, '[xid.109]\nweight = "hard"\naction = "drain"\n')
    before, after = load(), load(path)
    changed = {code for code in after.rows if after.rows[code] != before.rows.get(code)}
    row = after.of("xid.109")
    assert changed == {"xid.109"} and row and (row.weight, row.action, row.verdict) == ("hard", "drain", "unknown")
    assert before.digest() != after.digest() == load(path).digest()
    assert overrides(path) == ["xid.109: weight 'weak' -> 'hard'", "xid.109: action 'reset_gpu' -> 'drain'"]


def test_a_number_without_a_row_starts_from_its_family(tmp_path: Path) -> None:
    path = written(tmp_path, '[xid.999]\nweight = "strong"\nverdict = "gpu_hardware"\n')
    row, other = load(path).of("xid.999"), load(path).of("xid.998")
    assert row and (row.code, row.weight, row.layer) == ("xid.999", "strong", "kernel")
    assert other and other.code == "xid.*"


def test_a_pattern_of_the_sites_own_is_recognised(tmp_path: Path) -> None:
    path = written(tmp_path, LICENSE)
    lines = ["[rank3]: license server lic7 unreachable", "all well", "no license left"]
    signs = read_lines("job", lines, node="gn1", extra=site_recognisers(path))
    assert [(sign.code, sign.rank, sign.node) for sign in signs] == [
        ("site.license", 3, "gn1"),
        ("site.license", None, "gn1"),
    ]
    row = load(path).of("site.license")
    assert row and row.verdict == "config" and overrides(path)[0].startswith("site.license: new, strong, config")
    assert load().of("site.license") is None and site_recognisers(None) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[xid.109]\nweight = 'heavy'", r"site\.toml: xid\.109: weight: 'heavy' is none of hard, strong"),
        ("[xid.109]\nwieght = 'hard'", r"xid\.109: wieght: unknown column"),
        ("[xid.109]\nlayer = 'gpu'", r"xid\.109: layer: unknown column; of a code that Relume knows"),
        ("[xid.109]\ntext = ''", r"xid\.109: text: expected 1 to"),
        ("[xid.0x4f]\nweight = 'hard'", r"xid\.0x4f: expected the driver's number"),
        ("[xid]\n79 = 'hard'", r"xid\.79: expected a table"),
        ("[nodes.a]\nb = 1", r"nodes: unknown column; known here: signature, sxid, xid"),
        ("[signature.'nccl.socket_eror']\nweight = 'hard'", r"nccl\.socket_eror: no sign has this code"),
        ("[signature.'nccl.socket_error']\npattern = 'x'", r"nccl\.socket_error: pattern: unknown column"),
        ("weight =", r"site\.toml: not TOML"),
        (LICENSE.replace('layer = "process"\n', ""), r"site\.license: layer: is missing"),
        (
            LICENSE.replace('"no license left"]', '"license is gone"]'),
            r"yes: the pattern does not recognise 'license is gone'",
        ),
        (LICENSE.replace("lic1 answered", "lic1 unreachable"), r"no: the pattern recognises"),
        (
            LICENSE.replace("no license left|", "").replace("unreachable|no", "unreachable(|no"),
            r"pattern: not a regular",
        ),
        (LICENSE.replace("|no license left'", "|\\d+'"), r"pattern: each alternative needs 4 plain characters"),
        (LICENSE.replace("no = [", "nope = ["), r"nope: unknown column"),
    ],
)
def test_a_bad_override_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    for read in (load, overrides, site_recognisers):
        with pytest.raises(KnowledgeError, match=says):
            read(path)


def test_an_override_that_is_not_there_is_named() -> None:
    with pytest.raises(KnowledgeError, match=r"/nowhere/site\.toml: No such file"):
        load(Path("/nowhere/site.toml"))


def test_nothing_is_known_without_tables() -> None:
    assert Knowledge().of("xid.79") is None
