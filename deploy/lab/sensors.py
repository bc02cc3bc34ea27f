"""A node's sensor: the daemon as a site runs it, on the node's network, reading the lab's fake kernel log."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from deploy.lab import daemons, processes
from deploy.lab.errors import LabError
from deploy.lab.running import wait_for
from deploy.lab.state import Node, State

CODE = Path(__file__).resolve().parents[2]
BOOT_ID = "proc/sys/kernel/random/boot_id"
# The sensor hands over what it holds within two seconds of SIGTERM.
ENDING_S = 5.0


def start(state: State, node: Node, url: str, token: str) -> None:
    """Replaces the sensor that runs. Its folder stays while the node lives and dies, as a disk does."""
    if node.host_died:
        raise LabError(f"{node.name} is dead: restore it before a sensor is started there")
    stop(state, node)
    config = _write_config(state, node, url, token)
    argv = [sys.executable, "-m", "worker_hooks.sensor", "--config", str(config)]
    if node.netns:
        argv = ["ip", "netns", "exec", node.netns, *argv]
    env = {"PYTHONPATH": str(CODE), "PYTHONDONTWRITEBYTECODE": "1", "RELUME_LAB_NODE": node.name}
    node.sensor = daemons.spawn_marked(state, f"sensor-{node.name}", argv, env=env)
    state.save()


def stop(state: State, node: Node) -> None:
    """As systemd ends it: it is asked, and killed if it does not end."""
    sensor = node.sensor
    if sensor is None:
        return
    if processes.is_alive(sensor):
        processes.kill(sensor.pid, signal.SIGTERM)
    try:
        wait_for("the sensor ends", lambda: not processes.is_alive(sensor), seconds=ENDING_S)
    except LabError:
        processes.end_all(lambda: processes.tree(sensor))
    node.sensor = None
    state.save()


def forget(state: State, node: Node) -> None:
    """As if there had never been one: no process, no spool."""
    sensor, node.sensor = node.sensor, None
    if sensor is not None:
        processes.end_all(lambda: processes.tree(sensor))
        state.save()
    shutil.rmtree(_folder(state, node), ignore_errors=True)


def _write_config(state: State, node: Node, url: str, token: str) -> Path:
    """Nothing is below its root but the node's boot id: none of this machine's hardware is taken for the node's."""
    folder = _folder(state, node)
    root, spool, config = folder / "root", folder / "spool", folder / "sensor.json"
    (root / BOOT_ID).parent.mkdir(parents=True, exist_ok=True)
    spool.mkdir(exist_ok=True)
    folder.chmod(0o700)
    (root / BOOT_ID).write_text(f"{node.boot_id}\n")
    told = {"url": url, "token": token, "node": node.name, "kernel_log": node.kernel_log}
    config.unlink(missing_ok=True)
    with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({**told, "root": str(root), "spool": str(spool)}, file)
    return config


def _folder(state: State, node: Node) -> Path:
    return state.path / "sensor" / node.name
