"""The architecture is a test: what imports what, what the wheel holds, how long files may be."""

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure
ROOT = Path(__file__).resolve().parents[2]

# Rooms that import the standard library only, and which of our own rooms each may use beside itself.
STANDALONE = {
    "controller/decision": ("controller.decision",),
    "worker_hooks/protocol": ("worker_hooks.protocol",),
    "worker_hooks/signs": ("worker_hooks.signs", "worker_hooks.protocol"),
    "worker_hooks/agent": (
        "worker_hooks.agent",
        "worker_hooks.protocol",
        "worker_hooks.signs",
        "worker_hooks._version",
    ),
    "worker_hooks/sensor": (
        "worker_hooks.sensor",
        "worker_hooks.agent",
        "worker_hooks.protocol",
        "worker_hooks.signs",
        "worker_hooks._version",
    ),
    "worker_hooks/cli": (
        "worker_hooks.cli",
        "worker_hooks.agent",
        "worker_hooks.protocol",
        "worker_hooks.signs",
        "worker_hooks._version",
        "worker_hooks.digests",
    ),
}
PURE_SLURM = (
    *("port", "parse", "json_answers", "building", "states", "hostlist", "durations", "versions"),
    *("jobids", "reasons", "refusals", "checked", "views", "records", "parse_site", "accounting"),
    *("text_views", "columns", "memory"),
    *("unsupported", "pyslurm_views", "capacity"),
)
BANNED_NAMES = {"utils", "helpers", "common", "manager", "base", "misc"}


def python_files(*tops: str) -> list[Path]:
    return [p for top in tops for p in sorted((ROOT / top).rglob("*.py")) if "migrations" not in p.parts]


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            of_package = node.module == "controller.slurm"  # `from controller.slurm import states` means the module
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if of_package else {node.module}
    return names


def foreign(path: Path, own: tuple[str, ...]) -> set[str]:
    def ours(name: str) -> bool:
        return any(name == o or name.startswith(o + ".") for o in own)

    return {n for n in imported(path) if n.split(".")[0] not in sys.stdlib_module_names and not ours(n)}


@pytest.mark.parametrize("room", STANDALONE)
def test_standalone_rooms_import_the_standard_library_only(room: str) -> None:
    bad = {str(p.relative_to(ROOT)): foreign(p, STANDALONE[room]) for p in python_files(room)}
    assert {k: v for k, v in bad.items() if v} == {}


def test_digests_need_nothing_but_xxhash() -> None:
    assert foreign(ROOT / "worker_hooks/digests.py", ("xxhash",)) == set()


def test_the_pure_files_of_slurm_stand_alone() -> None:
    paths = [p for p in python_files("controller/slurm") if p.stem in PURE_SLURM]
    assert {p.stem for p in paths} >= {"states", "hostlist", "durations", "versions"}
    own = ("controller.errors", *(f"controller.slurm.{name}" for name in PURE_SLURM))
    assert foreign(ROOT / "controller/errors.py", ()) == set()
    assert {p.name: foreign(p, own) for p in paths if foreign(p, own)} == {}


def test_import_contracts_hold() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_processes_are_started_in_four_places_only() -> None:
    allowed = (
        "controller/slurm/runner.py",
        "controller/up/",
        "controller/management/commands/up",
        "worker_hooks/agent/",
        "worker_hooks/cli/",
    )
    users = [
        str(p.relative_to(ROOT))
        for p in python_files("controller", "dashboard", "worker_hooks")
        if "subprocess" in imported(p)
    ]
    assert [u for u in users if not u.startswith(allowed)] == []


def test_no_room_is_called_after_nothing() -> None:
    parts = {
        part.removesuffix(".py") for p in python_files("controller", "dashboard", "worker_hooks") for part in p.parts
    }
    assert parts & BANNED_NAMES == set()


def test_no_file_outgrows_its_room() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in python_files("controller", "dashboard", "worker_hooks", "deploy", "examples", "benchmarks")
        if (n := len(p.read_text().splitlines())) > 400
    }
    assert long == {}


def test_the_wheel_holds_the_worker_side_only(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT],
        check=True,
        timeout=170,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("relume-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        meta = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"worker_hooks"}
    expected = {str(p.relative_to(ROOT)) for p in python_files("worker_hooks")}
    assert expected <= set(names), "a module of the worker side is missing from the wheel"
    needs = [line for line in meta.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert needs == [], "the base install must bring nothing along"


def test_importing_worker_hooks_is_lazy() -> None:
    code = (
        "import sys, worker_hooks, worker_hooks.cli.main, worker_hooks.protocol.messages\n"
        "bad = {'torch', 'django', 'numpy', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(f'imported: {bad}' if bad else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_environment_name_is_documented() -> None:
    text = (ROOT / "docs/formats.md").read_text() + (ROOT / "deploy/env.example").read_text()
    code = "".join(p.read_text() for p in python_files("controller", "dashboard", "worker_hooks"))
    assert {n for n in re.findall(r"\bRELUME_[A-Z_]+\b", code) if n not in text} == set()
