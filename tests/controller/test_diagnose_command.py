"""`manage.py diagnose PATH [--json]`: a verdict, or an error that names file and key; never a traceback."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.controller.test_diagnose_report import KEYS

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[2]
XID = "[ 2210.417733] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
STALE = "[rank3]: OSError: [Errno 116] Stale file handle: 'data/shard_12.bin'"
IO = "[rank9]: OSError: [Errno 5] Input/output error: 'data/shard_40.bin'"


def bundle(folder: Path, value: Any) -> Path:
    path = folder / "case.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def diagnose(path: Path, *args: str) -> str:
    out = StringIO()
    call_command("diagnose", str(path), *args, stdout=out)
    return out.getvalue()


def refused(path: Path) -> str:
    with pytest.raises(CommandError) as wrong:
        diagnose(path, "--json")
    assert wrong.value.returncode == 2, wrong.value
    return str(wrong.value)


def test_a_bundle_gives_one_object_with_every_key(tmp_path: Path) -> None:
    said = json.loads(diagnose(bundle(tmp_path, {"dmesg": {"gn31": [XID]}}), "--json"))
    assert tuple(said) == KEYS
    assert (said["verdict"], said["drain"], said["xid"]) == ("gpu_hardware", ["gn31"], 79)
    assert [e["role"] for e in said["evidence"]] == ["proof"]
    assert diagnose(tmp_path).startswith("A GPU is at fault: gn31, GPU 0000:9b:00, Xid 79.\n")


def test_scenarios_come_back_as_a_list_in_their_order(tmp_path: Path) -> None:
    value = {"scenario_2": {"a1": [IO], "a2": [IO]}, "scenario_1": {"a1": [STALE], "a2": []}}
    said = json.loads(diagnose(bundle(tmp_path, value), "--json"))
    assert [s["verdict"] for s in said] == ["data_or_storage"] * 2
    assert [s["exclude"] for s in said] == [["a1"], []]
    assert diagnose(tmp_path).count("Data or storage failed") == 2


def test_a_folder_of_logs(tmp_path: Path) -> None:
    for name, line in (("kernel/gn31.log", XID), ("job/gn31.log", "step 5 loss 2.0")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(line + "\n")
    assert json.loads(diagnose(tmp_path, "--json"))["drain"] == ["gn31"]


def test_nothing_to_go_by_is_a_verdict_too(tmp_path: Path) -> None:
    said = json.loads(diagnose(bundle(tmp_path, {}), "--json"))
    assert (said["verdict"], said["drain"], said["suspect_nodes"]) == ("unknown", [], [])


@pytest.mark.parametrize(
    "text",
    ["", "not json", "\x00\x01\x7f", "[" * 100_000, '{"a":' * 100_000, "[]", "null", "7", '"text"', '{"log": NaN'],
)
def test_what_is_no_bundle_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    assert "case.json" in refused(bundle(tmp_path, text))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert "nothing-here" in refused(tmp_path / "nothing-here")
    assert "holds none of" in refused(tmp_path)
    (tmp_path / "case.json").write_bytes(os.urandom(4096))
    assert "case.json" in refused(tmp_path / "case.json")
    (tmp_path / "folder" / "case.json").mkdir(parents=True)
    assert "case.json" in refused(tmp_path / "folder")


VALUES: list[Any] = [None, True, 7, -1, 1.5, 1e400, "text", "", [], {}, [[]], [None], [{}], {"a": None}]
NAMES = (
    *("log", "dmesg", "rank_hosts", "ip_hosts", "nodes_of_job", "node", "sinfo", "sacct", "slurm", "slurm_state"),
    *("hook", "history", "attempts", "attempts_same", "last_step", "elapsed_s", "prior_success_on_same_nodes"),
    *("heartbeats", "node_free_mem", "other_nodes", "evidence", "scenario_1", "input"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_type_at_any_key_is_a_clear_error_or_a_verdict(tmp_path: Path, name: str) -> None:
    for value in VALUES:
        path = bundle(tmp_path, {name: value, "dmesg" if name != "dmesg" else "log": {"gn31": [XID]}})
        try:
            json.loads(diagnose(path, "--json"))
            diagnose(path)
        except CommandError as error:
            assert error.returncode == 2 and name in str(error), f"{value!r}: {error}"


def test_hostile_names_and_lines_are_printed_as_text(tmp_path: Path) -> None:
    line = "\ud800\u202e\x1b[2J" + XID
    text = diagnose(bundle(tmp_path, {"dmesg": {"gn\x1b[31m": [line]}, "log": [line]}))
    assert all(c.isprintable() or c == "\n" for c in text)


def test_a_fault_of_our_own_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("controller.management.commands.diagnose.assess", broken)
    with pytest.raises(CommandError, match="fault of Relume's own, not of the bundle") as wrong:
        diagnose(bundle(tmp_path, {}))
    assert wrong.value.returncode == 1


def test_a_knowledge_file_that_cannot_be_read_is_named(tmp_path: Path, settings: Any) -> None:
    settings.RELUME_KNOWLEDGE = str(tmp_path / "knowledge.toml")
    (tmp_path / "knowledge.toml").write_text("[xid.79]\nweight = 'huge'\n")
    assert "knowledge.toml" in refused(bundle(tmp_path, {}))
    (tmp_path / "knowledge.toml").write_text("[xid.79]\nweight = 'weak'\n")
    said = json.loads(diagnose(bundle(tmp_path, {"dmesg": {"gn31": [XID]}}), "--json"))
    assert said["drain"] == [], "a site's word wins"


def shell(path: Path, *args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """As a person runs it: another folder, no database that could be reached, no colour asked for."""
    told = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "PATH": os.environ["PATH"]} | env
    argv = [sys.executable, str(ROOT / "manage.py"), "diagnose", str(path), *args]
    return subprocess.run(argv, cwd=cwd, env=told, capture_output=True, text=True, timeout=120, check=False)


def test_from_any_folder_without_a_database(tmp_path: Path) -> None:
    done = shell(bundle(tmp_path, {"dmesg": {"gn31": [XID]}}), "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["verdict"] == "gpu_hardware"
    done = shell(tmp_path, cwd=tmp_path, LC_ALL="C", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "\x1b" not in done.stdout
    done = shell(bundle(tmp_path, '{"log": 7}'), "--json", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert "case.json: log" in done.stderr and "Traceback" not in done.stderr


def peak_bytes(bundle_of: Path) -> int:
    """Of this program alone: `ru_maxrss` would also count what its parent held when it was forked."""
    code = (
        "import re, sys; from django.core.management import execute_from_command_line as run\n"
        f"run(['manage.py', 'diagnose', {str(bundle_of)!r}, '--json'])\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr)"
    )
    env = {"DJANGO_SETTINGS_MODULE": "controller.settings", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr) * 1024


def test_memory_stays_flat_however_long_a_log_is(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    log, piece = tmp_path / "job" / "gn31.log", b"step 1 loss 2.0 nothing to see here\n" * 30_000
    log.write_bytes(piece * 10)
    short = peak_bytes(tmp_path)
    log.write_bytes(piece * 90)
    assert log.stat().st_size > 90_000_000
    assert peak_bytes(tmp_path) - short < 10_000_000
