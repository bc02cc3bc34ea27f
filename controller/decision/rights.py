"""What the controller's identities may do in Slurm, as `check_slurm` and Slurm's own refusals have told. Pure.

`Cluster.rights` is a plain value: {"capabilities": {name: {"may": "yes" | "some" | "no" | "unknown", ...}}, ...}. What
is not known is tried: Slurm's own word decides, and its refusal is remembered. `some` is a right over some jobs only
(an account's coordinator): it is tried as well.
"""

from collections.abc import Mapping
from typing import Any

YES, SOME, NO, UNKNOWN = "yes", "some", "no", "unknown"

UPDATE_NODES = "update_nodes"  # drain, down, resume
RESERVE = "reserve"  # make and delete reservations
JOBS_OF_OTHERS = "jobs_of_others"  # requeue, hold, release, exclude, set a reservation
READ_NODES = "read_nodes"
READ_JOBS = "read_jobs"  # everybody's, in hidden partitions too
READ_ACCOUNTING = "read_accounting"

WORDS = {
    READ_NODES: "see the nodes",
    READ_JOBS: "see everybody's jobs",
    READ_ACCOUNTING: "read accounting",
    UPDATE_NODES: "drain and resume nodes",
    JOBS_OF_OTHERS: "requeue and hold jobs of others",
    RESERVE: "make reservations",
}
CAPABILITIES = tuple(WORDS)


def may(rights: Mapping[str, Any], capability: str) -> bool | None:
    """None: not known, or only for some jobs. So `may(...) is False` means that trying is pointless."""
    return {YES: True, NO: False}.get(_finding(rights, capability).get("may", UNKNOWN))


def lacking(rights: Mapping[str, Any]) -> list[str]:
    """What is known to be missing, in words."""
    return [words for name, words in WORDS.items() if may(rights, name) is False]


def grant(rights: Mapping[str, Any], capability: str) -> str:
    """What grants it, as one line, or "" where nothing is known."""
    return "; ".join(str(_finding(rights, capability).get("grant", "")).splitlines())


def refused(rights: Mapping[str, Any], capability: str, proof: str, at: float) -> dict[str, Any]:
    """`rights` with Slurm's own refusal in it. What was only `some` stays: this was one of the other jobs."""
    before = _finding(rights, capability)
    if before.get("may") == SOME:
        return dict(rights)
    found = {**before, "may": NO, "proof": proof, "at": at}
    return {**rights, "capabilities": {**rights.get("capabilities", {}), capability: found}}


def _finding(rights: Mapping[str, Any], capability: str) -> Mapping[str, Any]:
    found = rights.get("capabilities", {}).get(capability, {})
    return found if isinstance(found, Mapping) else {}
