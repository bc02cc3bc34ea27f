"""What a lab may leave behind. Everything it makes carries its id or its directory: other labs do not disturb."""

import contextlib
import grp
import os
import pwd
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.lab.processes import is_alive, start_of
from deploy.lab.state import Process, lab_id


def traces(directory: Path, residents: Sequence[Process] = ()) -> list[str]:
    the_id = lab_id(directory)
    marks = (str(directory), the_id)
    found = [f"directory {directory}"] if directory.exists() else []
    listings = (["ip", "netns", "list"], ["ip", "-o", "link"], ["cat", "/proc/self/mountinfo"])
    for argv in listings:
        text = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=10).stdout
        found += [line for line in text.splitlines() if any(mark in line for mark in marks)]
    found += [user.pw_name for user in pwd.getpwall() if the_id in user.pw_name]
    found += [group.gr_name for group in grp.getgrall() if the_id in group.gr_name]
    found += [f"{process} lives" for process in residents if is_alive(process)]
    return found + list(process_traces(str(directory).encode()))


def residents_of(directory: Path) -> list[Process]:
    """Processes of the lab's users. Noted before `down`: afterwards the next lab may have been given their numbers."""
    uids = {user.pw_uid for user in pwd.getpwall() if lab_id(directory) in user.pw_name}
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid in uids:
                found.append(start_of(int(entry.name)))
    return found


def process_traces(mark: bytes) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = [(entry / name).read_bytes() for name in ("cmdline", "environ")]
        except OSError:
            continue
        if any(mark in word for word in words):
            yield f"process {entry.name} {words[0]!r}"
