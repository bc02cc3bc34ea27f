"""Losses that are no numbers, or jump. That alone never accuses a machine."""

from controller.decision.assess.opinion import Charge, Opinion
from controller.decision.assess.view import View, onset
from controller.decision.assess.words import listed, nodes_of
from controller.decision.assessment import HIGH, LOW, MEDIUM


def not_finite(view: View) -> Opinion | None:
    found = tuple(e for e in view.of("loss.not_finite") if e.attrs.get("healed") is not True)
    if not found:
        return None
    follows = view.case.facts.get("follows")
    step = next((f" at step {e.attrs['step']}" for e in found if "step" in e.attrs), "")
    if follows == "software":
        return Opinion("user_code", MEDIUM, f"the loss was no number{step}, on good hardware too once the same "
                       "software was on: the program", found, requeue=False, budget="user", onset=onset(found),
                       stop="the loss is no number with this software: change it first")  # fmt: skip
    nodes = nodes_of(found)
    if follows == "node" and len(nodes) == 1:
        return Opinion("gpu_hardware", MEDIUM, f"the loss was no number{step}, and it follows {nodes[0]}", found,
                       suspects=nodes, charges=(Charge(nodes[0], found, drain=True),), onset=onset(found),
                       follow_up=(f"run a GPU diagnosis on {nodes[0]}",))  # fmt: skip
    again = view.case.same_before > 0
    return Opinion("unknown", LOW, f"the loss was no number{step}: program, data or hardware; a machine is accused by "
                   "a second sign only", found, requeue=not again, limit=1, budget="user", onset=onset(found),
                   stop="the loss is no number again" if again else "",
                   follow_up=("repeat the step on other nodes: does it follow the node or the program?",))  # fmt: skip


def spike(view: View) -> Opinion | None:
    found = view.of("loss.spike")
    if not found:
        return None
    healed = all(e.attrs.get("healed") is True for e in found)
    steps = listed([e.attrs["step"] for e in found if "step" in e.attrs])
    at = f" at step {steps}" if steps else ""
    return Opinion("none", HIGH if healed else MEDIUM, f"the loss jumped{at}"
                   + (" and came back by itself: no incident, and no rollback" if healed else "; it is watched"),
                   found, requeue=False, budget="none", onset=onset(found))  # fmt: skip
