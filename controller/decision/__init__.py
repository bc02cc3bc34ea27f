"""The pure core: facts in, proposals and reasons out. Standard library only; no clock, no database, no I/O.

`propose(subject, now, policy)` looks at one training job; `admit(proposals, cluster, now, policy)` spends the ceilings
and guards over all of them. Where to add things: a detector in `detectors.py`, what a finding means in `diagnosis.py`,
a state or event in `incident.py`, `attempt.py` or `node_hold.py`, an action kind in `actions.py`.
"""
