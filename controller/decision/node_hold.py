"""The hold's table: our record of why a node is out of service (not Slurm's job hold).

`draining`: asked for, Slurm still runs jobs there. `drained`: Slurm shows DRAIN and nothing runs.
`released` only by a person or a passed check; `retired`: the machine leaves the cluster.
"""

from controller.decision.machine import Machine

NODE_HOLD = Machine(
    name="node hold",
    initial="draining",
    final=frozenset({"released", "retired"}),
    table={
        "draining": {"drained": "drained", "release": "released", "retire": "retired"},
        "drained": {"test": "testing", "release": "released", "retire": "retired", "jobs_returned": "draining"},
        "testing": {"test_failed": "drained", "release": "released", "retire": "retired"},
        "released": {},
        "retired": {},
    },
)
