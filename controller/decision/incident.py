"""The incident's table.

An incident is opened by a detector, diagnosed by `diagnosis`, and acted upon. `recovering` begins when the last action
is confirmed; `verifying` when the resumed attempt made its first step; `resolved` needs the verification, or the word
that there was nothing to verify with, or that what it asked about is over. A refused or failed action, or a failed
verification, ends in `awaiting_operator`: a person decides, the controller only watches.
`observed_only` is an incident in observe mode.
"""

from controller.decision.findings import NOT_FINITE, SAVES_FAIL
from controller.decision.machine import Machine

# Causes that end nothing: such an incident asks beside a run that goes on, and other faults are looked for as before.
GOES_ON = frozenset({NOT_FINITE, SAVES_FAIL})

INCIDENT = Machine(
    name="incident",
    initial="open",
    final=frozenset({"resolved", "observed_only", "abandoned"}),
    table={
        "open": {"diagnose": "diagnosed", "abandon": "abandoned"},
        "diagnosed": {
            "act": "acting",
            "observe": "observed_only",
            "ask": "awaiting_operator",
            "abandon": "abandoned",
        },
        "acting": {"actions_done": "recovering", "ask": "awaiting_operator", "abandon": "abandoned"},
        "recovering": {
            "first_step": "verifying",
            "recovered_unverified": "resolved",
            "ask": "awaiting_operator",
            "abandon": "abandoned",
        },
        "verifying": {"verified": "resolved", "ask": "awaiting_operator", "abandon": "abandoned"},
        "awaiting_operator": {"act": "acting", "resolve": "resolved", "abandon": "abandoned"},
        "resolved": {},
        "observed_only": {},
        "abandoned": {},
    },
)
