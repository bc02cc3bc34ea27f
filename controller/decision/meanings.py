"""What a code means, as data that diagnosis weighs.

`controller/knowledge` loads and checks it; it is part of the policy.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

# How much a code says. hard: one of it names its subject. strong: counts as a layer. weak: only beside others.
# cascade: a consequence; it never names anybody. clears: speaks for its subject. context: says what was going on.
WEIGHTS = ("hard", "strong", "weak", "cascade", "clears", "context")
# Whom it is about: the node or rank that it was read on, the peer that it names, the job, a storage, nobody.
ABOUT = ("node", "rank", "peer", "job", "storage", "nobody")
VERDICTS = (
    *("gpu_hardware", "node_failure", "fabric", "host_oom", "gpu_oom", "user_code", "config", "data_or_storage"),
    *("slurm_infra", "preempted", "time_limit", "requeued_by_controller", "hang_unattributed", "resume_fault"),
    *("unknown", "none"),
)
# What the vendor (or an admin's override) wants done with the device.
ACTIONS = ("none", "restart_app", "reset_gpu", "reboot", "drain")


@dataclass(frozen=True)
class Meaning:
    """One row. `verdict`: the class that it argues for. `text`: what people read. `vendors`: where they disagree."""

    code: str
    layer: str
    about: str
    weight: str
    verdict: str
    text: str
    action: str = "none"
    vendors: str = ""


@dataclass(frozen=True)
class Knowledge:
    """Rows by code, `xid.*` and `sxid.*` rows for numbers that no row names."""

    rows: Mapping[str, Meaning] = field(default_factory=dict)

    def of(self, code: str) -> Meaning | None:
        """The row of `code`, else that of its family, else None: nothing is known about it."""
        found = self.rows.get(code)
        return found if found is not None else self.rows.get(code.split(".", 1)[0] + ".*")

    def digest(self) -> str:
        rows = {code: asdict(row) for code, row in sorted(self.rows.items())}
        return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:32]
