"""The policy: everything that a site may set, as one frozen value with a digest (docs/formats.md section 7)."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from controller.decision.meanings import Knowledge

MODES = ("observe", "approve", "act")
LEAST_BACKOFF_S = 30.0
LEAST_FLOOR_S = 5.0
MOST = 1e9  # more seconds than anybody means; the end of an exclusion must still be a date


class PolicyError(ValueError):
    """The policy file is wrong; the text names the key and what to do."""


@dataclass(frozen=True)
class Ceilings:
    """How much may be out or requeued. Nodes out count everybody's drains, not only ours."""

    max_nodes_out: int = 4
    max_fraction_out: float = 0.5
    max_drains_per_hour: int = 4
    max_requeues_per_minute: int = 10


@dataclass(frozen=True)
class Limits:
    """Seconds. `sign_memory_s`: how long signs are kept; those that an incident rests on are kept with it.
    `strike_memory_s`: how long what an incident said of a node counts as a voice beside another job's."""

    agent_silent_s: float = 3.0
    probe_timeout_s: float = 1.0
    probe_fresh_s: float = 10.0
    view_stale_s: float = 15.0
    exclusion_s: float = 86400.0
    action_expires_s: float = 600.0
    exit_settle_s: float = 2.0
    sign_memory_s: float = 604800.0
    strike_memory_s: float = 86400.0


@dataclass(frozen=True)
class Budget:
    """Requeues that one training job may cost before a person is asked. `time_limit`: after a time-out with progress;
    0 asks at each."""

    infrastructure: int = 8
    process: int = 3
    user: int = 0
    time_limit: int = 50
    same_step: int = 2


@dataclass(frozen=True)
class Launch:
    """Starts that Slurm could not make. The first wait before the next try is `backoff_s`, doubled for each failure in
    a row up to `backoff_max_s`. `hold_after` failures on one node within `memory_s` hold it. `release_at_limit`:
    whether Slurm's own stop (MaxBatchRequeue) may be lifted, once a job."""

    backoff_s: float = 30.0
    backoff_max_s: float = 1800.0
    memory_s: float = 86400.0
    hold_after: int = 2
    release_at_limit: bool = False


@dataclass(frozen=True)
class Stall:
    """How long a rank may stand still, by what it does. The first six hold until the run has shown its own pace
    (`learn_from` steps, one stretch of anything else); then it is the largest of `floor_s`, `median_factor` times the
    median and `longest_factor` times the longest seen. `settle_s`: the wait for other signs before it is an incident.
    `slow_factor`: a pace so many times slower than the run's own is evidence."""

    startup_s: float = 1800.0
    loading_s: float = 3600.0
    first_step_s: float = 3600.0
    step_s: float = 1800.0
    saving_s: float = 3600.0
    evaluation_s: float = 7200.0
    floor_s: float = 300.0
    median_factor: float = 10.0
    longest_factor: float = 3.0
    learn_from: int = 5
    settle_s: float = 10.0
    slow_factor: float = 8.0


@dataclass(frozen=True)
class CheckpointInterval:
    """Bounds of the interval that is asked for, in seconds, and the failures expected before any were seen: so many for
    each node and day, weighed like so many days of one node. Source of the default: 6.5 failures in 1000 node-days
    (Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", 2024: RSC-1)."""

    shortest_s: float = 60.0
    longest_s: float = 3600.0
    prior_per_node_day: float = 0.0065
    prior_node_days: float = 300.0


@dataclass(frozen=True)
class Loss:
    """`not_finite_steps`: so many losses of rank 0 in a row that are no numbers are put to a person; 0 asks never."""

    not_finite_steps: int = 20


@dataclass(frozen=True)
class Policy:
    """`trust_job_evidence`: whether the word of one job's own processes may hold a node. Off, it excludes the node for
    that job, until the root sensor, Slurm or an independent job agrees. `knowledge`: what signs mean; it comes from
    tables of its own (RELUME_KNOWLEDGE), not from the policy file."""

    mode: str = "observe"
    trust_job_evidence: bool = False
    ceilings: Ceilings = field(default_factory=Ceilings)
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)
    launch: Launch = field(default_factory=Launch)
    stall: Stall = field(default_factory=Stall)
    loss: Loss = field(default_factory=Loss)
    checkpoint: CheckpointInterval = field(default_factory=CheckpointInterval)
    knowledge: Knowledge = field(default_factory=Knowledge, metadata={"file": False})

    def digest(self) -> str:
        """Changes when any value changes, or what any sign means; kept with every decision."""
        values = {**self.values(), "knowledge": self.knowledge.digest()}
        return "sha256:" + hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]

    def values(self) -> dict[str, Any]:
        """What the policy file sets."""
        values = asdict(replace(self, knowledge=Knowledge()))
        del values["knowledge"]
        return values


def policy_from(data: Mapping[str, Any]) -> Policy:
    """A parsed TOML table -> Policy. Raises PolicyError that names the key: unknown, wrongly typed, out of range."""
    policy: Policy = _section(Policy, data, "")
    if policy.mode not in MODES:
        raise PolicyError(f"mode: {policy.mode!r} is none of {', '.join(MODES)}")
    if not 0 < policy.ceilings.max_fraction_out <= 1:
        raise PolicyError("ceilings.max_fraction_out: must be above 0 and at most 1")
    _check_launch(policy.launch)
    _check_stall(policy.stall)
    if policy.checkpoint.longest_s < policy.checkpoint.shortest_s:
        raise PolicyError("checkpoint.longest_s: below checkpoint.shortest_s")
    return policy


def _check_launch(launch: Launch) -> None:
    if launch.backoff_s < LEAST_BACKOFF_S:
        raise PolicyError(f"launch.backoff_s: at least {LEAST_BACKOFF_S:g}, or a node that rejects them is hammered")
    if launch.backoff_max_s < launch.backoff_s:
        raise PolicyError("launch.backoff_max_s: less than launch.backoff_s")
    if launch.hold_after < 2:
        raise PolicyError("launch.hold_after: at least 2; the first failed launch only excludes the node for the job")


def _check_stall(stall: Stall) -> None:
    kinds = ("startup_s", "loading_s", "first_step_s", "step_s", "saving_s", "evaluation_s")
    for name in ("floor_s", *kinds):
        if getattr(stall, name) < LEAST_FLOOR_S:
            raise PolicyError(f"stall.{name}: at least {LEAST_FLOOR_S:g}: agents speak once a second")
    for name in ("median_factor", "longest_factor", "slow_factor"):
        if getattr(stall, name) < 1.5:
            raise PolicyError(f"stall.{name}: at least 1.5, or what is usual is a stall")
    if stall.learn_from < 1:
        raise PolicyError("stall.learn_from: at least 1")


def _section(kind: type[Any], data: Mapping[str, Any], prefix: str) -> Any:
    known = {f.name: f for f in fields(kind) if f.metadata.get("file", True)}
    values: dict[str, Any] = {}
    default = kind()
    for key, value in data.items():
        where = prefix + key
        if key not in known:
            raise PolicyError(f"{where}: unknown key; known here: {', '.join(sorted(known))}")
        values[key] = _value(getattr(default, key), value, where)
    return kind(**values)


def _value(default: Any, value: Any, where: str) -> Any:
    if hasattr(default, "__dataclass_fields__"):
        if not isinstance(value, Mapping):
            raise PolicyError(f"{where}: expected a table")
        return _section(type(default), value, where + ".")
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST:
        value = float(value)
    if type(value) in (int, float) and not value <= MOST:  # NaN is not either, and would silence every comparison
        raise PolicyError(f"{where}: not a number up to {MOST:g}")
    if type(value) is not type(default):
        raise PolicyError(f"{where}: expected {type(default).__name__}, got {type(value).__name__}")
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        raise PolicyError(f"{where}: {value} is negative")
    return value
