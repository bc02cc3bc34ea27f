"""What detectors return: a finding (enough proof to act), a suspicion (probe first), or nothing."""

from dataclasses import dataclass

from controller.decision.evidence import Evidence

# Cause classes, in the words of the verdict.
NODE_LOST = "node_lost"
NODE_DOWN = "node_down"
NODE_FAILED = "node_failed"
MANY_NODES = "many_nodes"
# A node's sensor has seen its hardware fail.
NODE_SIGN = "node_sign"
PROCESS_DIED = "process_died"
USER_ERROR = "user_error"
TIME_LIMIT = "time_limit"
DEADLINE = "deadline"
PREEMPTED = "preempted"
# A start that Slurm could not make, by its own word; by the look of it only; one too many for Slurm.
SLURM_INFRA = "slurm_infra"
START_FAILED = "start_failed"
LAUNCH_LIMIT = "launch_limit"
VERIFICATION_FAILED = "verification_failed"
# Slurm calls it completed, and steps are missing.
INCOMPLETE = "incomplete"
HANG = "hang"
# The loss stays no number; the run goes on.
NOT_FINITE = "not_finite"
# Nothing is saved any more; the run goes on.
SAVES_FAIL = "saves_fail"
# By the evidence, whoever found that something was wrong.
GPU_HARDWARE = "gpu_hardware"
NODE_FAULT = "node_fault"
FABRIC = "fabric"
HOST_OOM = "host_oom"
GPU_OOM = "gpu_oom"
CONFIG = "config"
DATA_OR_STORAGE = "data_or_storage"


@dataclass(frozen=True)
class Clue:
    """One line of proof. `stance`: `accuses`, `clears`, `soft`, `context` or `cascade` (a consequence). `layer`:
    process, communication, library, gpu, kernel, network, slurm, progress, node. `at` is when it was observed (Unix
    seconds). The rest is of the piece of evidence that it is made of (`clue_of`), `ref` its id."""

    layer: str
    source: str
    subject: str
    code: str
    raw: str
    at: float
    stance: str = "accuses"
    ref: str = ""
    origin: str = ""
    node: str = ""
    rank: int | None = None
    count: int = 1
    last_at: float | None = None
    received_at: float | None = None


def clue_of(piece: Evidence, stance: str, now: float) -> Clue:
    """A piece of evidence as an incident keeps it; undated ones as of when they came."""
    at = piece.at if piece.at is not None else piece.received_at if piece.received_at is not None else now
    subject = f"rank {piece.rank}" if piece.rank is not None else piece.node or piece.job or "job"
    return Clue(
        layer=piece.layer,
        source=piece.source,
        subject=subject,
        code=piece.code,
        raw=piece.raw,
        at=at,
        stance=stance,
        ref=piece.id,
        origin=piece.origin,
        node=piece.node or "",
        rank=piece.rank,
        count=piece.count,
        last_at=piece.last_at,
        received_at=piece.received_at,
    )


@dataclass(frozen=True)
class Finding:
    """A detected fault. `fault_at` is an estimate, not before `last_good_at` and not after detection. `restarts`:
    Slurm's count of the start that it hit, where that is not the one of the newest attempt."""

    cause: str
    reason: str
    suspects: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    clues: tuple[Clue, ...] = ()
    fault_at: float | None = None
    last_good_at: float | None = None
    restarts: int | None = None


@dataclass(frozen=True)
class Suspicion:
    """Not enough proof: which nodes to probe, and beside which control nodes. Never opens an incident."""

    nodes: tuple[str, ...]
    controls: tuple[str, ...]
    witnesses: tuple[str, ...]
    reason: str
