"""The lab's network: every node a namespace with two interfaces, both bridges in a namespace of their own.

                     switch (namespace)
    host ── host_link ──┤ mgmt  ├── m1 ── eth0 @ gpu1      10.77.K.n    the controller, slurmctld: .254
                        │       └── m2 ── eth0 @ gpu2
                        │ train ├── t1 ── eth1 @ gpu1      10.78.K.n    no way out
                        │       └── t2 ── eth1 @ gpu2

The bridges live apart from the host so that the host's packet filter (Docker's drops bridged traffic) does not see
the nodes' traffic, and so that the host gains one interface only. A cable is cut at the switch's end: the node keeps
its addresses, nothing it says leaves, and nobody answers for it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
from collections.abc import Iterable

from deploy.lab.errors import LabError
from deploy.lab.processes import NETNS_DIR
from deploy.lab.running import run
from deploy.lab.state import Network, Node, State

HOST_NUMBER = 254
MANAGEMENT, TRAINING, BOTH = "management", "training", "both"


def plan(lab_id: str, count: int) -> tuple[Network, list[Node], str]:
    """The network, the nodes and the host's management address. Call it, and `create`, under the machine's lock."""
    taken = _routes()
    for k in range(1, 255):
        nets = [ipaddress.ip_network(f"10.{second}.{k}.0/24") for second in (77, 78)]
        if not any(net.overlaps(route) for net in nets for route in taken):
            break
    else:
        raise LabError("every network 10.77.K.0/24 is in use on this machine")
    network = Network(f"relume-{lab_id}-switch", f"rl{lab_id}", str(nets[0]), str(nets[1]))
    nodes = [
        Node(f"gpu{n}", str(nets[0][n]), str(nets[1][n]), 6818, f"relume-{lab_id}-gpu{n}", f"m{n}", f"t{n}")
        for n in range(1, count + 1)
    ]
    return network, nodes, str(nets[0][HOST_NUMBER])


def create(state: State) -> None:
    network = _network(state)
    for name in (network.switch, *(node.netns for node in state.nodes if node.netns)):
        run(["ip", "netns", "add", name])
        _ip(name, ["link set dev lo up"])
    run(
        ["ip", "link", "add", "dev", network.host_link, "type", "veth", "peer", "name", "host", "netns", network.switch]
    )
    run(["ip", "address", "add", f"{state.management_host}/24", "dev", network.host_link])
    run(["ip", "link", "set", "dev", network.host_link, "up"])
    bridges = [f"link add {b} type bridge" for b in ("mgmt", "train")]
    _ip(
        network.switch,
        [*bridges, "link set dev host master mgmt", *(f"link set dev {x} up" for x in ("mgmt", "train", "host"))],
    )
    for node in state.nodes:
        _plug(network, node)


def remove(state: State) -> None:
    """Whatever of it exists."""
    if state.network is None:
        return
    if (NETNS_DIR.parent.parent / "sys/class/net" / state.network.host_link).exists():
        run(["ip", "link", "delete", state.network.host_link])
    for name in (state.network.switch, *(node.netns for node in state.nodes if node.netns)):
        if (NETNS_DIR / name).exists():
            run(["ip", "netns", "delete", name])
    if state.network.made_netns_mount and NETNS_DIR.exists() and not any(NETNS_DIR.iterdir()):
        # Both are refused when somebody has made a namespace since: then the mount is theirs to keep.
        if netns_is_mounted():
            run(["umount", str(NETNS_DIR)], check=False)
        with contextlib.suppress(OSError):
            NETNS_DIR.rmdir()


def taken(state: State) -> list[str]:
    names = [node.netns for node in state.nodes if node.netns]
    return [name for name in names if (NETNS_DIR / name).exists()]


def set_node_links(state: State, node: Node, *, up: bool, which: str = BOTH) -> None:
    """Plug or pull a node's cables, at the switch, all at the same moment."""
    ports = {MANAGEMENT: [node.port_management], TRAINING: [node.port_training]}
    chosen = ports.get(which) or [node.port_management, node.port_training]
    _ip(_network(state).switch, [f"link set dev {port} {'up' if up else 'down'}" for port in chosen])


def set_host_link(state: State, *, up: bool) -> None:
    """The cable between the controller's host and all nodes. The host keeps its address: slurmctld still answers."""
    _ip(_network(state).switch, [f"link set dev host {'up' if up else 'down'}"])


def links(state: State) -> dict[str, bool]:
    """Which of the switch's ports are up."""
    shown = json.loads(run(["ip", "-n", _network(state).switch, "-j", "link", "show"]).stdout)
    return {entry["ifname"]: "UP" in entry["flags"] for entry in shown}


def netns_is_mounted() -> bool:
    return os.path.ismount(NETNS_DIR)


def owns_netns_mount() -> bool:
    """The first `ip netns add` mounts /run/netns: is (or was) that a lab's, so that the last lab takes it down?"""
    if not netns_is_mounted():
        return True
    names = [entry.name for entry in NETNS_DIR.iterdir()]
    return bool(names) and all(name.startswith("relume-") for name in names)


def _plug(network: Network, node: Node) -> None:
    for port, bridge, interface in ((node.port_management, "mgmt", "eth0"), (node.port_training, "train", "eth1")):
        cable = f"link add dev {port} type veth peer name {interface} netns {node.netns}"
        _ip(network.switch, [cable, f"link set dev {port} master {bridge}", f"link set dev {port} up"])
    addresses = ((node.management, "eth0"), (node.training, "eth1"))
    _ip(str(node.netns), [f"address add {address}/24 dev {interface}" for address, interface in addresses])
    _ip(str(node.netns), [f"link set dev {interface} up" for _, interface in addresses])


def _ip(namespace: str, lines: Iterable[str]) -> None:
    """Several `ip` commands in one namespace, in one go; stops at the first that fails."""
    run(["ip", "-n", namespace, "-batch", "-"], stdin="\n".join(lines) + "\n")


def _network(state: State) -> Network:
    if state.network is None:
        raise LabError("this lab runs on loopback: its nodes share the machine's network, which cannot be cut")
    return state.network


def _routes() -> list[ipaddress.IPv4Network]:
    """Networks in use here. Wider ones than /16 are no hindrance: ours are the more specific route."""
    routes = json.loads(run(["ip", "-4", "-j", "route", "show", "table", "all"]).stdout)
    destinations = [r["dst"] for r in routes if r["dst"][0].isdigit()]
    return [net for d in destinations if (net := ipaddress.IPv4Network(d, strict=False)).prefixlen >= 16]
