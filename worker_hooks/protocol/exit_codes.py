"""Exit codes of `relume run`, shared by the agent (which uses them) and the controller (which reads them in Slurm).

Chosen from the BSD sysexits range so that they do not collide with a shell's 126..165 or a Python traceback's 1.
"""

FINISHED = 0
ENDED = 1
USAGE = 2
UNAVAILABLE = 69
ATTEMPT_FAILED = 75
SUPERSEDED = 76
VERIFICATION_FAILED = 77
