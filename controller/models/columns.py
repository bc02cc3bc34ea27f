"""Column kinds that several tables share."""

from __future__ import annotations

from typing import Any

from django.db import models

from controller.decision.machine import Machine


def state_column(machine: Machine) -> models.CharField[str, str]:
    """A state of one of the decision core's tables. Only `controller.ledger` writes it."""
    return models.CharField(max_length=24, default=machine.initial, choices=[(s, s) for s in machine.states])


def state_check(machine: Machine, name: str) -> models.CheckConstraint:
    """The database refuses a state that the table does not list."""
    return models.CheckConstraint(name=name, condition=models.Q(state__in=machine.states))


def json_list() -> models.JSONField[Any, Any]:
    return models.JSONField(default=list, blank=True)


def json_dict() -> models.JSONField[Any, Any]:
    return models.JSONField(default=dict, blank=True)
