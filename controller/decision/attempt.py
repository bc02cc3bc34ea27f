"""The attempt's table (one generation of ranks), and the outcome that an ended attempt carries.

`pending`: known to Slurm, no agent yet. `starting`: an agent spoke, no step yet. `running`: a step was made.
`ending`: its teardown was asked for or seen. `superseded` and the rest are outcomes of `ended`, not states.
"""

from controller.decision.machine import Machine

ATTEMPT = Machine(
    name="attempt",
    initial="pending",
    final=frozenset({"ended"}),
    table={
        "pending": {"agent": "starting", "step": "running", "teardown": "ending", "end": "ended"},
        "starting": {"step": "running", "teardown": "ending", "end": "ended"},
        "running": {"teardown": "ending", "end": "ended"},
        "ending": {"end": "ended"},
        "ended": {},
    },
)

OUTCOMES = (
    "finished",
    "node_lost",
    "node_failed",
    "process_died",
    "launch_failed",
    "user_error",
    "verification_failed",
    "incomplete",
    "hung",
    "superseded",
    "cancelled",
    "preempted",
    "time_limit",
    "requeued",
    "unknown",
)
