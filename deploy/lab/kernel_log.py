"""Each node's fake kernel log: a file of records as /dev/kmsg gives them, one to a line.

4,17,81234567890,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
│ │  │           └ what dmesg shows as `[81234.567890] NVRM: Xid …`
│ │  └ microseconds since boot
│ └ number of the record
└ level: warning
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from deploy.lab.errors import LabError
from deploy.lab.state import Node

BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
NOBODY = "pid='<unknown>', name=<unknown>"
# Code to the driver's words, in the form that its versions since 550 print.
WORDS = {
    13: "Graphics SM Warp Exception on (GPC 1, TPC 0, SM 0): Out Of Range Address",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f3a_4c000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "Ch 00000008",
    45: "Ch 00000008",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 3, "
    "subpartition 0.",
    62: "2b1c(3c84) 00000000 00000000",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Error recording row remapping",
    74: "NVLink: fatal error detected on link 2(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    92: "High single-bit ECC error rate",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    109: "Ch 00000028, errorString CTX SWITCH TIMEOUT, Info 0x2c014",
    119: "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) "
    "(0x20800a4c 0x4).",
    120: "GSP task exception: load access page fault (cause:0xd) @ pc:0x1200b8c, partition:4#0, task:2",
    140: "An uncorrectable ECC error detected (possible firmware handling failure) DRAM:-1840691462, LTC:0, "
    "MMU:0, PCIE:0",
    143: "GPU initialization failure",
    149: "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}


def xid(node: Node, code: str | int, *, gpu: int = 0, pid: int | None = None, name: str = "python3") -> str:
    """Append the driver's line for `code` on GPU number `gpu`, and return its text. `pid`: the process it names."""
    if not re.fullmatch("[1-9][0-9]{0,4}", str(code)):
        raise LabError(f"{code!r} is no Xid code: a number from 1 to 99999")
    if not 0 <= gpu < len(BUSES):
        raise LabError(f"GPU {gpu}: a node has 0 to {len(BUSES) - 1}")
    who = NOBODY if pid is None else f"pid={pid}, name={name}"
    words = WORDS.get(int(code), "Unknown error")
    text = f"NVRM: Xid (PCI:0000:{BUSES[gpu]}:00): {int(code)}, {who}, {words}"
    append(node, text)
    return text


def append(node: Node, text: str, *, level: int = 4) -> None:
    log = Path(node.kernel_log)
    number = len(log.read_text().splitlines())
    at = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    with log.open("a") as file:
        file.write(f"{level},{number},{at},-;{text}\n")


def clear(node: Node) -> None:
    """The host has booted: the kernel's memory of the time before is gone."""
    Path(node.kernel_log).write_text("")
