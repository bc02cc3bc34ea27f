"""Network adapters in the kernel log: mlx5 and mlx4, EFA and ENA, bnxt, ice and whoever writes `Link is Down`."""

import re
from collections.abc import Mapping

from worker_hooks.signs.rows import Row, RowReader
from worker_hooks.signs.sign import Scalar

_PCI = r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]"
_DEVICE = rf"(?:\w[\w-]* {_PCI} )?(?!mlx4_en:)(?P<device>[\w.@-]+)"
# Interfaces of containers, virtual machines and the machine's own: no cable.
_VIRTUAL = re.compile(r"(?:lo|veth|docker|cali|cni|virbr|br-|tap|tun|vnet|vxlan|flannel|dummy|usb|wl)")
_DRIVER = rf"(?:mlx[45]_core|bnxt_en|bnxt_re|ice|i40e|irdma|ena|efa|hfi1|cxi_core|cxi_ss1|qede?) (?P<device>{_PCI})"


def _wired(match: re.Match[str]) -> Mapping[str, Scalar | None] | None:
    return None if _VIRTUAL.match(match["device"]) else {}


_DOWN = re.compile(
    rf"(?:^|: |\s){_DEVICE}:? (?:mlx4_en: )?(?:\w+: )?(?:NIC )?[Ll]ink (?:is )?(?:[Dd]own|DOWN)\b(?!.*\b[Uu]p\b)"
)
_UP = re.compile(rf"(?:^|: |\s){_DEVICE}:? (?:\w+: )?(?:NIC )?[Ll]ink (?:is )?(?:[Uu]p|UP)\b")

ROWS = (
    Row(
        "ink",
        "nic.link_down",
        re.compile(r"link status definitely down for (?:interface|active interface) (?P<device>[\w.-]+)"),
    ),
    Row("ink", "nic.link_down", re.compile(r"\(slave (?P<device>[\w.-]+)\): link status definitely down")),
    Row("ink", "nic.link_up", re.compile(r"\(slave (?P<device>[\w.-]+)\): link status (?:definitely )?up\b")),
    Row("ink", "nic.link_down", _DOWN, more=_wired),
    Row("ink", "nic.link_up", _UP, more=_wired),
    Row("ink", "nic.link_up", re.compile(r"(?P<device>ib\w+): link becomes ready")),
    Row(
        "ort module event",
        "nic.link_down",
        re.compile(rf"mlx5_core (?P<device>{_PCI}).*[Pp]ort module event.*: module (?P<port>\d+), Cable unplugged"),
    ),
    Row(
        "ort module event",
        "nic.error",
        re.compile(rf"mlx5_core (?P<device>{_PCI}).*[Pp]ort module event\[error\]: module (?P<port>\d+)"),
        text=True,
    ),
    Row(
        "health",
        "nic.error",
        re.compile(
            rf"{_DRIVER}.*(?:health compromised|health recovery (?:flow )?(?:failed|aborted)|health_care.*fail)"
        ),
        text=True,
    ),
    Row("synd", "nic.error", re.compile(rf"{_DRIVER}.*(?:\bsynd 0x(?!0+\b)|ext_synd 0x(?!0+\b))"), text=True),
    Row("syndrome (", "nic.error", re.compile(rf"{_DRIVER}.*failed, status .*syndrome \("), text=True),
    Row("ailed, status", "nic.error", re.compile(rf"{_DRIVER}.*failed, status .*\(0x(?!0\))"), text=True),
    Row(
        "imeout",
        "nic.error",
        re.compile(
            rf"{_DRIVER}.*(?:\(0x[0-9a-f]+\) timeout|timeout\. Will cause a leak|TX timeout detected|"
            r"Keep alive watchdog timeout|[Cc]ommand .*timeout)"
        ),
        text=True,
    ),
    Row("timeout: ", "nic.error", re.compile(rf"{_DRIVER}.*Error \(timeout: \d+\)"), text=True),
    Row(
        "NETDEV WATCHDOG",
        "nic.error",
        re.compile(r"NETDEV WATCHDOG: (?:CPU: \d+: )?(?P<device>[\w.-]+) \([\w-]+\): transmit queue \d+ timed out"),
        text=True,
    ),
    Row(
        "nternal error",
        "nic.error",
        re.compile(rf"{_DRIVER}.*(?:[Ii]nternal error (?:detected|state)|firmware internal error)"),
        text=True,
    ),
    Row("irmware", "nic.error", re.compile(rf"{_DRIVER}.*[Ff]irmware (?:is )?not responding"), text=True),
    Row("nsufficient power", "nic.error", re.compile(rf"{_DRIVER}.*[Ii]nsufficient power"), text=True),
    Row("rror cqe", "nic.error", re.compile(r"(?P<device>mlx[45]_\d+).*(?:dump error cqe|error cqe)"), text=True),
    Row("WC error: ", "nic.error", re.compile(r"(?P<device>mlx[45]_\d+).*WC error: \d+"), text=True),
    Row(
        "omp_status ",
        "nic.error",
        re.compile(rf"efa (?P<device>{_PCI}).*Failed to process command .*comp_status"),
        text=True,
    ),
    Row(
        "completion but the driver didn't receive",
        "nic.error",
        re.compile(rf"(?:efa|ena) (?P<device>{_PCI}).*completion but the driver didn't receive"),
        text=True,
    ),
    Row(
        "eset device failed",
        "nic.error",
        re.compile(rf"(?:efa|ena) (?P<device>{_PCI}).*Reset device failed"),
        text=True,
    ),
    Row("rigger reset is on", "nic.error", re.compile(rf"ena (?P<device>{_PCI}).*Trigger reset is on"), text=True),
)


def network_reader() -> RowReader:
    return RowReader(ROWS)
