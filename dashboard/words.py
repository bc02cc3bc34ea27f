"""States in words: always a colour, an icon of its own outline and a word."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """`tone`: ok, run, warn, bad, hold or idle. `icon`: a name of the sprite."""

    text: str
    tone: str
    icon: str


JOB = {
    "queued": Word("In the queue", "idle", "wait"),
    "starting": Word("Starting", "run", "wait"),
    "training": Word("Training", "run", "run"),
    "recovering": Word("Recovering", "warn", "again"),
    "verifying": Word("Verifying", "run", "shield"),
    "stopped": Word("Stopped, needs you", "bad", "bad"),
    "finished": Word("Finished", "ok", "done"),
    "cancelled": Word("Cancelled", "idle", "stop"),
}
# A stopped job whose incident has a cause with a word of its own.
STOPPED = {
    "verification_failed": Word("Check failed, needs you", "bad", "bad"),
    "incomplete": Word("Incomplete, needs you", "bad", "bad"),
}

INCIDENT = {
    "open": Word("Open", "warn", "warn"),
    "diagnosed": Word("Diagnosed", "warn", "warn"),
    "acting": Word("Acting", "warn", "again"),
    "recovering": Word("Recovering", "warn", "again"),
    "verifying": Word("Verifying", "run", "shield"),
    "awaiting_operator": Word("Needs you", "bad", "bad"),
    "resolved": Word("Resolved", "ok", "done"),
    "observed_only": Word("Observed only", "idle", "idle"),
    "abandoned": Word("Overtaken by another incident", "idle", "minus"),
}
RESOLVED_VERIFIED = Word("Resolved and verified", "ok", "shield")

ATTEMPT = {
    "pending": Word("In the queue", "idle", "wait"),
    "starting": Word("Starting", "run", "wait"),
    "running": Word("Running", "run", "run"),
    "ending": Word("Ending", "warn", "again"),
}
OUTCOME = {
    "finished": Word("Finished", "ok", "done"),
    "node_lost": Word("Node lost", "idle", "again"),
    "node_failed": Word("Node failed", "idle", "again"),
    "process_died": Word("Process died", "idle", "again"),
    "hung": Word("Stood still", "idle", "again"),
    "launch_failed": Word("Launch failed", "idle", "again"),
    "user_error": Word("Ended with an error", "bad", "bad"),
    "verification_failed": Word("Check failed", "bad", "bad"),
    "incomplete": Word("Ended early", "bad", "bad"),
    "superseded": Word("Superseded", "idle", "minus"),
    "cancelled": Word("Cancelled", "idle", "stop"),
    "preempted": Word("Preempted", "idle", "again"),
    "time_limit": Word("Time limit", "idle", "wait"),
    "requeued": Word("Requeued", "idle", "again"),
    "unknown": Word("Ended, unknown why", "warn", "warn"),
}

HOLD = {
    "draining": Word("Draining", "hold", "hold"),
    "drained": Word("Drained", "hold", "hold"),
    "testing": Word("Testing", "run", "wait"),
    "returned": Word("Back, not checked", "warn", "warn"),
    "released": Word("Released", "idle", "ok"),
    "retired": Word("Retired", "hold", "hold"),
}
NOT_OURS = Word("Not ours", "idle", "hold")

ACTION = {
    "proposed": Word("waits for approval", "warn", "wait"),
    "ready": Word("about to begin", "run", "wait"),
    "claimed": Word("in progress", "run", "wait"),
    "done": Word("done", "ok", "ok"),
    "refused": Word("not taken", "idle", "minus"),
    "expired": Word("expired, not taken", "idle", "minus"),
    "cancelled": Word("cancelled", "idle", "stop"),
}

CHECK = {
    "PASS": Word("agrees", "ok", "ok"),
    "DEGRADED": Word("agrees within limits", "warn", "warn"),
    "RESHARDED": Word("on another layout", "warn", "warn"),
    "FAIL": Word("differs", "bad", "bad"),
}

CHECK_NAMES = {
    "step": "Step",
    "parameters": "Parameters",
    "optimizer": "Optimizer",
    "learning_rate": "Learning rate",
    "data_position": "Data position",
    "consumed": "Samples against steps",
    "data_ledger": "Samples seen once",
    "sample_random": "Augmentation",
    "global_batch": "Global batch",
    "random_state": "Random state",
    "replicas": "Replicas at the save",
    "layout": "Layout",
    "loss": "Loss",
}

# What went wrong with checkpoints, and what storage said of it.
CHECKPOINT_ALARMS = {
    "save_failed": "a save failed",
    "checkpoint_tidy": "storage refused what follows a save",
    "checkpoint_pointer": "the pointer misleads",
    "checkpoint_not_whole": "a checkpoint on the nodes is not whole",
    "checkpoint_copy": "a copy on a node was left out",
    "checkpoint_peer": "no copy on a peer node",
    "restarted_from_scratch": "RESTARTED_FROM_SCRATCH",
    "generation_broken": "a generation file was broken",
}
STORAGE = {
    "storage.quota": "the quota is used up",
    "storage.no_space": "no space is left",
    "storage.readonly": "the file system is read-only",
    "storage.io_error": "storage reports an input/output error",
    "storage.stale": "a file handle is stale",
    "storage.unreachable": "storage does not answer",
}

LAYERS = {
    "process": "Process",
    "library": "Communication",
    "gpu": "GPU",
    "kernel": "Kernel",
    "network": "Network",
    "slurm": "Slurm",
    "progress": "Progress",
    "node": "Node",
}
LAYER_NAMES = {"communication": "library"}  # other spellings of the same layer

# What a piece of evidence does in its verdict.
STANCES = {
    "accuses": "points at the culprit",
    "clears": "clears something",
    "soft": "soft sign",
    "cascade": "a consequence",
}
# Whose word it is.
ORIGINS = {
    "sensor": "the node’s sensor",
    "slurm": "Slurm",
    "controller": "Relume itself",
    "job": "the job’s own word",
}

# What Relume may do: the word, and what follows from it.
MODES = {
    "act": (Word("Acting", "ok", "ok"), "holds and requeues"),
    "approve": (Word("Asks first", "warn", "wait"), "nothing is done before a person says so"),
    "observe": (Word("Observing", "idle", "idle"), "only says what it would do"),
}


def confidence(value: float) -> str:
    """In words, as diagnosis gives it, and as the number that it stands for."""
    word = "high" if value >= 0.8 else "medium" if value >= 0.5 else "low"
    return f"{word} ({value:.2f})"


def of(table: dict[str, Word], state: str) -> Word:
    """A state without a word of its own is shown as it is spelled."""
    return table.get(state) or Word(state.replace("_", " ").capitalize() or "Unknown", "idle", "idle")


def of_job(state: str, cause: str | None) -> Word:
    return STOPPED.get(cause or "", JOB[state]) if state == "stopped" else of(JOB, state)


def of_attempt(state: str, outcome: str) -> Word:
    return of(OUTCOME, outcome) if state == "ended" else of(ATTEMPT, state)


def of_incident(state: str, verification: str) -> Word:
    return RESOLVED_VERIFIED if state == "resolved" and verification in ("PASS", "verified") else of(INCIDENT, state)
