"""What is true of a lab at this moment, for `status`."""

from __future__ import annotations

from typing import Any

from deploy.lab import network, processes, slurm
from deploy.lab.state import State


def seen(state: State) -> dict[str, Any]:
    ports = network.links(state) if state.network else {}
    states = slurm.node_states(state)
    nodes = {
        node.name: {
            "slurm_state": states.get(node.name, "unknown"),
            "slurmd": processes.is_alive(node.slurmd),
            "sensor": processes.is_alive(node.sensor),
            "processes": len(processes.on_node(state, node)),
            "management_up": ports.get(node.port_management, True),
            "training_up": ports.get(node.port_training, True),
        }
        for node in state.nodes
    }
    expected = {**state.daemons, **({"filler": state.filler} if state.filler else {})}
    alive = {name: processes.is_alive(process) for name, process in expected.items()}
    up = ports.get("host", True)
    return {"slurm_answers": bool(states), "controller_up": up, "daemons": alive, "nodes": nodes}
