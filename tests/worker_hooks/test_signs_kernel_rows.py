"""Every row of the kernel's tables: spellings of several versions under every style of prefix, and quiet neighbours."""

import pytest

from tests.worker_hooks.kernel_lines import ALL, Entry
from worker_hooks.signs.kernel_hardware import ROWS as HARDWARE
from worker_hooks.signs.kernel_host import DISK_ROWS, STORAGE_ROWS, STUCK_ROWS
from worker_hooks.signs.kernel_network import ROWS as NETWORK
from worker_hooks.signs.log import KERNEL, read_lines
from worker_hooks.signs.rows import Row

pytestmark = pytest.mark.pure

PREFIXES = (
    "",
    "[  812.417733] ",
    "[  812.417733][ T1234] ",
    "[Thu Mar  5 02:11:40 2026] ",
    "2026-03-05T02:11:40,308145+01:00 ",
    "2026-03-05T02:11:40.308145+01:00 gn31 kernel: ",
    "Mar  5 02:11:40 gn31 kernel: [  812.417733] ",
    "kern  :err   : [  812.417733] ",
    "<4>[  812.417733] ",
    "4,17,812417733,-;",
)
DAEMONS = ("Mar  5 02:11:40 gn31 ", "2026-03-05T02:11:40+01:00 gn31 ")  # a program of its own, in the host's one log
TABLES = {"hardware": HARDWARE, "stuck": STUCK_ROWS, "disk": DISK_ROWS, "storage": STORAGE_ROWS, "network": NETWORK}


def codes(line: str) -> list[str]:
    return [sign.code for sign in read_lines(KERNEL, [line], node="gn31")]


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: f"{entry[0]}: {entry[2][0][:40]}")
def test_each_spelling_is_its_sign_under_every_prefix(entry: Entry) -> None:
    code, attrs, lines, _ = entry
    for line in lines:
        for prefix in DAEMONS if line.startswith("mmfs[") else PREFIXES:
            signs = [s for s in read_lines(KERNEL, [prefix + line], node="gn31") if s.code == code]
            assert len(signs) == 1, prefix + line
            assert signs[0].node == "gn31"
            assert {name: signs[0].attrs.get(name) for name in attrs} == attrs, prefix + line


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: f"{entry[0]}: {entry[2][0][:40]}")
def test_its_neighbours_are_not(entry: Entry) -> None:
    code, _, _, neighbours = entry
    assert neighbours
    for line in neighbours:
        for prefix in PREFIXES:
            assert code not in codes(prefix + line), prefix + line


@pytest.mark.parametrize("table", sorted(TABLES))
def test_no_row_is_without_a_line(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[int] = set()
    original = Row.sign

    def sign(row: Row, line: object) -> object:
        found = original(row, line)  # type: ignore[arg-type]
        if found is not None:
            reached.add(id(row))
        return found

    monkeypatch.setattr(Row, "sign", sign)
    for _, _, lines, _ in ALL:
        for line in lines:
            codes(line)
    assert [f"{row.literal}: {row.pattern.pattern}" for row in TABLES[table] if id(row) not in reached] == []
