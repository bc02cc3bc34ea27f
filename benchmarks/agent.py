"""What the node sensor costs: CPU seconds of its process by seconds of the clock, at one round per 5 s, on a made-up
host of 8 GPUs' PCIe links, 9 InfiniBand ports and a kernel log in which lines come.

`python benchmarks/agent.py --json [--seconds N]`. The last line is one JSON object: `sensor_cpu_fraction` (start-up
left out), `sensor_start_cpu_s`, and `per_reader`: seconds of CPU a round, measured in this process. There is no GPU
here, so NVML's own share is not in it.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.worker_hooks.fake_host import MELLANOX, FakeHost  # noqa: E402
from worker_hooks.sensor.counters import Gpus, InfinibandReader, LinkReader, MemoryReader, PcieReader  # noqa: E402

INTERVAL_S = 5.0
WARM_UP_S = 6.0
ROUNDS = 20
COUNTERS = 40  # files beside the named ones, as an NDR port has them
LINES_A_SECOND = 5


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="the result as JSON (it always is; for symmetry)")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="relume-bench-") as folder:
        host = make_host(Path(folder) / "host")
        print(json.dumps({**measure(Path(folder), host, options.seconds), "per_reader": per_reader(host.root)}))
    return 0


def make_host(root: Path) -> FakeHost:
    host = FakeHost(root)
    host.memory(1_500_000)
    host.interface("ib0")
    more = {f"counter_{n}": n for n in range(COUNTERS)}
    for n in range(8):
        host.ib_port(f"mlx5_{n}", counters=more)
        host.pci_device(f"0000:{n + 16:02x}:00.0")
        host.pci_device(f"0000:{n + 48:02x}:00.0", vendor=MELLANOX, kind="0x020700", driver="mlx5_core")
    host.ib_port("mlx5_bond_0", layer="Ethernet", rate="200 Gb/sec (2X NDR)", counters=more)
    return host


def measure(folder: Path, host: FakeHost, seconds: float) -> dict[str, Any]:
    server = controller()
    log, config = folder / "kmsg", folder / "sensor.json"
    log.write_text("")
    data = {"url": f"http://127.0.0.1:{server.server_port}", "token": "t", "node": "gpu1", "interval_s": INTERVAL_S}
    data |= {"spool": f"{folder}/spool", "root": str(host.root), "kernel_log": str(log), "interfaces": ["ib0"]}
    config.write_text(json.dumps(data))
    config.chmod(0o600)
    argv = [sys.executable, "-m", "worker_hooks.sensor", "--config", str(config)]
    process = subprocess.Popen(argv, cwd=ROOT)
    try:
        live(log, WARM_UP_S)
        start_cpu, begun = cpu_s(process.pid), time.monotonic()
        live(log, seconds)
        used, wall = cpu_s(process.pid) - start_cpu, time.monotonic() - begun
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        server.shutdown()
    return {
        "sensor_cpu_fraction": round(used / wall, 5),
        "seconds": round(wall, 1),
        "sensor_start_cpu_s": round(start_cpu, 3),
    }


def live(log: Path, seconds: float) -> None:
    """Kernel lines while the time passes: most of them nothing, an Xid now and then."""
    end, number = time.monotonic() + seconds, len(log.read_text().splitlines())
    while time.monotonic() < end:
        micros = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        text = "NVRM: Xid (PCI:0000:10:00): 31, pid=7, name=python3, Ch 00000008" if number % 100 == 99 else "eth0: up"
        with log.open("a") as file:
            file.write(f"4,{number},{micros},-;{text}\n")
        number += 1
        time.sleep(1 / LINES_A_SECOND)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def per_reader(root: Path) -> dict[str, float]:
    readers: dict[str, Any] = {
        "infiniband": InfinibandReader(root),
        "pcie": PcieReader(root, Gpus()),
        "memory": MemoryReader(root),
        "link": LinkReader(root, ["ib0"]),
    }
    costs = {}
    for name, read in readers.items():
        begun = time.process_time()
        for number in range(ROUNDS):
            read(number * INTERVAL_S)
        costs[name] = round((time.process_time() - begun) / ROUNDS, 6)
    return costs


def controller() -> ThreadingHTTPServer:
    """Acks everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            acked = max((record["seq"] for record in data["records"]), default=0)
            answer = {"protocol": 1, "acked": acked, "server_time": time.time(), "instructions": [], "pace_s": 1.0}
            body = json.dumps({**answer, "checkpoint_interval_s": None}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
