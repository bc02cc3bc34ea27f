"""A made-up host below a folder: the files of /sys and /proc that the sensor's readers look at."""

from collections.abc import Mapping
from pathlib import Path

ERRORS = ("symbol_error", "port_rcv_errors", "link_error_recovery", "link_downed", "local_link_integrity_errors")
MELLANOX, NVIDIA = "0x15b3", "0x10de"


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}")


class FakeHost:
    """`root` is what readers get; every method makes or changes one thing."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def ib_port(
        self,
        device: str,
        *,
        state: str = "4: ACTIVE",
        phys: str = "5: LinkUp",
        rate: str = "400 Gb/sec (4X NDR)",
        layer: str = "InfiniBand",
        hca: str = "MT4129",
        interface: str = "",
        counters: Mapping[str, int] | None = None,
        hw_counters: Mapping[str, int] | None = None,
    ) -> None:
        folder = self.root / "sys/class/infiniband" / device
        write(folder / "hca_type", hca)
        port = folder / "ports/1"
        for name, content in (("state", state), ("phys_state", phys), ("rate", rate), ("link_layer", layer)):
            write(port / name, content)
        for name, value in {**dict.fromkeys(ERRORS, 0), **(counters or {})}.items():
            write(port / "counters" / name, value)
        for name, value in {"lifespan": 10, **(hw_counters or {})}.items():
            write(port / "hw_counters" / name, value)
        if interface:
            write(port / "gid_attrs/ndevs/0", f"{interface}\n")

    def pci_device(
        self,
        address: str,
        *,
        vendor: str = NVIDIA,
        kind: str = "0x030200",
        driver: str = "nvidia",
        width: object = 16,
        max_width: object = 16,
        speed: str = "32.0 GT/s PCIe",
        max_speed: str = "32.0 GT/s PCIe",
        slot_width: object = 16,
        slot_speed: str = "32.0 GT/s PCIe",
    ) -> Path:
        bridge = self.root / "sys/devices/pci0000:00" / f"bridge-{address}"
        device = bridge / address
        files = {"vendor": vendor, "class": kind, "current_link_width": width, "max_link_width": max_width}
        files |= {"current_link_speed": speed, "max_link_speed": max_speed}
        for name, content in files.items():
            write(device / name, content)
        write(bridge / "max_link_width", slot_width)
        write(bridge / "max_link_speed", slot_speed)
        (self.root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        bus = self.root / "sys/bus/pci/devices"
        bus.mkdir(parents=True, exist_ok=True)
        if not (bus / address).exists():
            (bus / address).symlink_to(device)
            (device / "driver").symlink_to(self.root / "sys/bus/pci/drivers" / driver)
        return device

    def memory(self, available_kb: int, total_kb: int = 2_000_000, full_avg10: float | None = 0.0) -> None:
        write(self.root / "proc/meminfo", f"MemTotal: {total_kb} kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\n")
        if full_avg10 is not None:
            some = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
            write(self.root / "proc/pressure/memory", f"{some}full avg10={full_avg10:.2f} avg60=0.00 total=1\n")

    def interface(self, name: str, *, carrier: object = 1, flags: str = "0x1003", losses: object = 0) -> None:
        folder = self.root / "sys/class/net" / name
        for file, content in (("carrier", carrier), ("flags", flags), ("carrier_down_count", losses)):
            write(folder / file, content)

    def gpu_information(self, pci: str, uuid: str) -> None:
        text = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nBus Location: \t {pci}.0\n"
        write(self.root / "proc/driver/nvidia/gpus" / f"{pci}.0" / "information", text)
