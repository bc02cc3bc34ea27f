"""The state machines: data that every row can trust."""

import pytest

from controller.decision.actions import ACTION
from controller.decision.attempt import ATTEMPT
from controller.decision.incident import INCIDENT
from controller.decision.machine import Machine, RefusedTransition
from controller.decision.node_hold import NODE_HOLD
from controller.decision.training_job import TRAINING_JOB

pytestmark = pytest.mark.pure
MACHINES = [INCIDENT, ATTEMPT, NODE_HOLD, TRAINING_JOB, ACTION]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_every_state_is_listed_and_reached(machine: Machine) -> None:
    reached, frontier = {machine.initial}, [machine.initial]
    while frontier:
        for target in machine.table[frontier.pop()].values():
            assert target in machine.table, target
            if target not in reached:
                reached.add(target)
                frontier.append(target)
    assert reached == set(machine.table)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_every_pair_is_allowed_or_refused(machine: Machine) -> None:
    for state in machine.states:
        for event in machine.events:
            if machine.allows(state, event):
                assert machine.after(state, event) == machine.table[state][event]
            else:
                with pytest.raises(RefusedTransition, match=event):
                    machine.after(state, event)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_nothing_follows_a_final_state_and_everything_can_end(machine: Machine) -> None:
    for state in machine.final:
        assert machine.table[state] == {}
    ends = set(machine.final)
    while True:
        more = {s for s in machine.table if s not in ends and set(machine.table[s].values()) & ends}
        if not more:
            break
        ends |= more
    assert ends == set(machine.table), "a state from which no end can be reached"


def test_an_unknown_state_is_refused_too() -> None:
    with pytest.raises(RefusedTransition):
        INCIDENT.after("nonsense", "diagnose")
