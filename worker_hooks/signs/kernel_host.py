"""The host itself in the kernel log: lockups, hung tasks, panics, disks, network file systems."""

import re
from collections.abc import Mapping

from worker_hooks.signs.rows import Row, RowReader
from worker_hooks.signs.sign import Scalar


def _storage(kind: str) -> Mapping[str, Scalar | None]:
    return {"kind": kind}


def _down(literal: str, kind: str, pattern: str) -> Row:
    return Row(literal, "storage.not_responding", re.compile(pattern), more=lambda match: _storage(kind))


def _back(literal: str, kind: str, pattern: str) -> Row:
    return Row(literal, "storage.recovered", re.compile(pattern), more=lambda match: _storage(kind))


def _disk(literal: str, pattern: str) -> Row:
    return Row(literal, "disk.error", re.compile(pattern), text=True)


STUCK_ROWS = (
    Row(
        "soft lockup - CPU#",
        "kernel.soft_lockup",
        re.compile(
            r"BUG: soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<seconds>\d+)s!"
            r"(?: \[(?P<process>[^\]]*):(?P<pid>\d+)\])?"
        ),
    ),
    Row("hard LOCKUP", "kernel.hard_lockup", re.compile(r"[Ww]atchdog detected hard LOCKUP on cpu (?P<cpu>\d+)")),
    Row(
        "ard LOCKUP",
        "kernel.hard_lockup",
        re.compile(r"CPU:? ?(?P<cpu>\d+):? (?:self-)?(?:Watchdog )?(?:detected )?[Hh]ard LOCKUP"),
    ),
    Row(
        "blocked for more than",
        "kernel.hung_task",
        re.compile(r"INFO: task (?P<process>.{1,64}?):(?P<pid>\d+) blocked for more than (?P<seconds>\d+) seconds"),
    ),
    Row(
        "stall",
        "kernel.rcu_stall",
        re.compile(r"\brcu\w*:? .*(?:self-detected stall|detected (?:expedited )?stalls?)|INFO: rcu\w* .*stall"),
        text=True,
    ),
    Row("ernel panic - not syncing", "kernel.panic", re.compile(r"Kernel panic - not syncing"), text=True),
    Row(
        "NULL pointer dereference",
        "kernel.panic",
        re.compile(
            r"(?:BUG: |Unable to handle )kernel NULL pointer|"
            r"BUG: unable to handle kernel NULL pointer"
        ),
        text=True,
    ),
    Row(
        "unable to handle", "kernel.panic", re.compile(r"BUG: unable to handle (?:kernel )?(?:paging|page)"), text=True
    ),
    Row("kernel BUG at", "kernel.panic", re.compile(r"kernel BUG at \S+:\d+"), text=True),
    Row("Oops: ", "kernel.panic", re.compile(r"Oops: .*(?:\[#\d+\]|SMP)"), text=True),
    Row("eneral protection fault", "kernel.panic", re.compile(r"^general protection fault.*\[#\d+\]"), text=True),
)

DISK_ROWS = (
    Row(
        "emounting filesystem read-only",
        "disk.readonly",
        re.compile(r"(?:EXT[234]-fs|FAT-fs|F2FS-fs) ?\((?P<device>[^)]+)\)"),
    ),
    Row("forced readonly", "disk.readonly", re.compile(r"BTRFS.*\(device (?P<device>[\w-]+).*forced readonly")),
    _disk("nvme", r"nvme (?P<device>nvme\d+): I/O .*timeout"),
    _disk(
        "nvme",
        r"nvme (?P<device>nvme\d+): (?:controller is down|Removing after probe failure|Device not ready|"
        r"Device shutdown incomplete|Abort status|resetting controller due to|failed to set APST)",
    ),
    _disk("nvme", r"(?P<device>nvme\d+(?:c\d+)?n\d+): I/O Cmd\(.*I/O Error \("),
    _disk("/O error, dev ", r"I/O error, dev (?P<device>[\w-]+), sector"),
    _disk("/O error on dev", r"Buffer I/O error on dev(?:ice)? (?P<device>[\w-]+)"),
    _disk(
        " error, dev ",
        r"(?:critical (?:medium|target|space allocation|nexus)|protection|timeout) error, dev (?P<device>[\w-]+)",
    ),
    _disk("FAILED Result: ", r"\[(?P<device>sd[a-z]+)\].*FAILED Result: hostbyte=(?!DID_OK\b.*driverbyte=DRIVER_OK)"),
    _disk("Sense Key : ", r"\[(?P<device>sd[a-z]+)\].*Sense Key : (?:Medium Error|Hardware Error)"),
    _disk(
        ": exception Emask",
        r"(?P<device>ata\d+(?:\.\d+)?): exception Emask 0x[0-9a-f]+ SAct 0x[0-9a-f]+ SErr \w+ action 0x[2-9a-f]",
    ),
    _disk("EXT4-fs error", r"EXT4-fs error \(device (?P<device>[\w-]+)\)"),
    _disk("Aborting journal on", r"Aborting journal on device (?P<device>[\w-]+?)(?:-8)?\."),
    _disk(
        "XFS (",
        r"XFS \((?P<device>[\w-]+)\): .*(?:[Mm]etadata (?:I/O error|corruption)|[Cc]orruption (?:detected|of in-m)|"
        r"log I/O error|[Ff]ile ?system has been shut down|I/O error detected|xfs_do_force_shutdown|Please u)",
    ),
    _disk("BTRFS", r"BTRFS (?:error|critical) \(device (?P<device>[\w-]+)[^)]*\)"),
    _disk("Disk failure on", r"md/\w+:\w+: Disk failure on (?P<device>[\w-]+)"),
)

_LUSTRE = r"[\w-]+-(?:OST|MDT)[0-9a-fA-F]{4}|MGS|MGC[\d.]+@\w+"
_UNSENT = r"(?:timed out|failed due to network error)"
_LEASE = r"[Dd]isk lease .*(?:overdue|expired)"

STORAGE_ROWS = (
    _down("not responding", "nfs", r"nfs: server (?P<server>\S+) not responding"),
    _back("nfs: server ", "nfs", r"nfs: server (?P<server>\S+) OK"),
    _down(" was lost; in progress", "lustre", rf"Connection to (?P<server>{_LUSTRE}) .*was lost"),
    _down("client was evicted by", "lustre", rf"client was evicted by (?P<server>{_LUSTRE})"),
    _down("@@@ Request", "lustre", rf"Lustre.*@@@ Request sent has {_UNSENT}.*->(?P<server>{_LUSTRE})"),
    _down("@@@ Request", "lustre", rf"Lustre.*@@@ Request sent has {_UNSENT}.*@(?P<server>[\w.]+@\w+)"),
    _down(
        "operation ",
        "lustre",
        rf"LustreError.*?(?P<server>{_LUSTRE}).*operation \w+ to node \S+ failed: rc = -(?:107|110|108|5)\b",
    ),
    _back("onnection restored to", "lustre", rf"Connection restored to (?P<server>{_LUSTRE})"),
    # The daemon's name may be a prefix, which is no part of the text.
    _down("unmounted by the system", "gpfs", r"[Ff]ile ?system (?P<server>\S+) (?:was )?unmounted by the system"),
    _down("isk lease ", "gpfs", rf"{_LEASE}(?P<server>)"),
    _down("mmfs", "gpfs", r"mmfs.*(?:unmounted by the system|[Ll]ost contact)(?P<server>)"),
    _down("GPFS", "gpfs", r"GPFS.*(?:unmounted by the system|[Ll]ost contact)(?P<server>)"),
    _back(
        "beegfs",
        "beegfs",
        r"beegfs.*(?:Reconnected|[Cc]onnection .*(?:re-?established|restored))(?:.*: ?(?P<server>\S+))?",
    ),
    _down(
        "beegfs",
        "beegfs",
        r"beegfs.*(?:Communication error|[Cc]onnect(?:ion)? (?:failed|lost|to)|timed out|unreachable)"
        r".*?(?:[Nn]ode: |from: |to: |\s)(?P<server>[\w.-]+(?: \[ID: \d+\]|@[\w.:-]+)?)",
    ),
    _down(
        "libceph",
        "ceph",
        r"libceph(?: \([^)]*\))?: (?P<server>(?:osd|mon|mds)\d+)\b.*(?:\bdown\b|session lost|socket closed)",
    ),
    _back(
        "libceph", "ceph", r"libceph(?: \([^)]*\))?: (?P<server>(?:osd|mon|mds)\d+)\b.*(?:\bup\b|session established)"
    ),
    _down(" hung", "ceph", r"ceph: (?:\[[^\]]*\]:? *)?(?P<server>mds\d+) hung"),
    _back(" came back", "ceph", r"ceph: (?:\[[^\]]*\]:? *)?(?P<server>mds\d+) came back"),
    _down("has not responded in", "cifs", r"CIFS.*(?:\\\\|Server )(?P<server>\S+) has not responded in \d+ seconds"),
)


def stuck_reader() -> RowReader:
    return RowReader(STUCK_ROWS)


def disk_reader() -> RowReader:
    return RowReader(DISK_ROWS)


def storage_reader() -> RowReader:
    return RowReader(STORAGE_ROWS)
