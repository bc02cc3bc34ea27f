"""The action kinds: what an incident may ask the executor to do.

An action is one intended effect with its own key, order and expiry. Actions of an incident run in `order`; one that
ends otherwise than `done` stops the ones behind it. `hold_node` may be refused (ceiling, rights) without stopping the
requeue, because the exclusion already keeps this job away from the node: such plans are `optional`.
"""

from dataclasses import dataclass, field
from typing import Any

from controller.decision.machine import Machine

HOLD_NODE = "hold_node"
REQUEUE = "requeue_excluding"
NOTIFY = "notify"
# Only by a person's word, never planned by propose().
RELEASE_NODE = "release_node"
# Planned together with the making of a reservation, to end it again; the incident does not wait for it.
GIVE_BACK = "give_back"
KINDS = (HOLD_NODE, REQUEUE, NOTIFY, RELEASE_NODE, GIVE_BACK)
# Carried out whatever becomes of the incident and its other actions.
ALWAYS = (NOTIFY, GIVE_BACK)

ACTION = Machine(
    name="action",
    initial="proposed",
    final=frozenset({"done", "refused", "expired", "cancelled"}),
    table={
        # `proposed` waits for a person (approve mode); `ready` for the executor.
        "proposed": {"approve": "ready", "cancel": "cancelled", "expire": "expired"},
        "ready": {"claim": "claimed", "cancel": "cancelled", "expire": "expired"},
        # A claim whose lease ran out is claimed again: the stage says how far the first one came.
        "claimed": {
            "claim": "claimed",
            "wait": "ready",
            "done": "done",
            "refuse": "refused",
            "expire": "expired",
            "cancel": "cancelled",
        },
        "done": {},
        "refused": {},
        "expired": {},
        "cancelled": {},
    },
)


@dataclass(frozen=True)
class ActionPlan:
    """What admit() may turn into an Action row. `target`: a node name, or a Slurm job id. `delay_s`: it is due so long
    after it was decided."""

    kind: str
    target: str
    order: int
    params: dict[str, Any] = field(default_factory=dict)
    optional: bool = False
    reason: str = ""
    delay_s: float = 0.0
