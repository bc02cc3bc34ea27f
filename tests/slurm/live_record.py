"""Writes down how the port's contract went on a real Slurm: `pytest -p tests.slurm.live_record --live-record DIR`.

One file for each version and adapter, `<version>-<adapter>.json`:
`{"version": "25.11.7", "adapter": "pyslurm", "date": "2026-11-29", "passed": [test names], "failed": []}`.
Only classes that say in `live` which adapter they try are recorded, and what is run again replaces what it was.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest


@dataclass
class Recorder:
    folder: Path
    outcomes: dict[tuple[str, str], dict[str, bool]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        adapter = getattr(getattr(item, "cls", None), "live", "")
        if adapter and adapter not in self.versions:
            self.versions[adapter] = str(item.funcargs["bench"].port.version())  # type: ignore[attr-defined]
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        adapter = getattr(getattr(item, "cls", None), "live", "")
        if adapter in self.versions and (report.when == "call" or report.failed):
            found = self.outcomes.setdefault((self.versions[adapter], adapter), {})
            found[item.name] = found.get(item.name, True) and report.passed
        return report

    def pytest_sessionfinish(self) -> None:
        for (version, adapter), outcomes in self.outcomes.items():
            path = self.folder / f"{version}-{adapter}.json"
            path.write_text(json.dumps(_merged(path, version, adapter, outcomes), indent=1) + "\n")


def _merged(path: Path, version: str, adapter: str, outcomes: dict[str, bool]) -> dict[str, object]:
    known = json.loads(path.read_text()) if path.exists() else {"passed": [], "failed": []}
    earlier = {name: key == "passed" for key in ("passed", "failed") for name in known[key]}
    now = earlier | outcomes
    return {
        "version": version,
        "adapter": adapter,
        "date": datetime.now(UTC).date().isoformat(),
        "passed": sorted(name for name, passed in now.items() if passed),
        "failed": sorted(name for name, passed in now.items() if not passed),
    }


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--live-record", type=Path, metavar="DIR", help="where contract runs on a real Slurm are recorded")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--live-record")
    if folder is not None:
        config.pluginmanager.register(Recorder(folder.resolve()))
