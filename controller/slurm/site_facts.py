"""Settings of slurm.conf and of the clocks that decide how a recovery goes here, each with what it means for it. Pure.

A fact is {"name", "value", "note", "ok"}; `ok` is False where Relume works worse for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from controller.slurm.building import number

Fact = dict[str, Any]

SKEW_NOTED_S = 5.0
SKEW_BAD_S = 60.0
MUNGE_TTL_S = 300
SHORTEST_MIN_JOB_AGE_S = 10
_AS_OF = re.compile(r"Configuration data as of (\d+)")


def facts(config: Mapping[str, str], write_limit_s: float) -> list[Fact]:
    """`write_limit_s`: how long Relume waits for a write. A setting that this version does not have is left out."""
    judged = [(name, config[name], judge(config[name])) for name, judge in _JUDGES.items() if name in config]
    found = [_fact(name, value, *said) for name, value, said in judged]
    if "MessageTimeout" in config:
        found.append(_message_timeout(config["MessageTimeout"], write_limit_s))
    return found


def clock_skew(config_text: str, asked_at: float, answered_at: float) -> Fact | None:
    """slurmctld's clock against ours, from the head of `scontrol show config` with epoch times: whole seconds, so less
    than a second cannot be seen. None when the head is not there."""
    found = _AS_OF.search(config_text)
    if found is None:
        return None
    told = float(found.group(1))
    ahead = told - answered_at if told > answered_at else min(0.0, told + 1 - asked_at)
    if abs(ahead) < SKEW_NOTED_S:
        return _fact("clock", f"{ahead:+.0f} s", "slurmctld's clock and ours agree", True)
    note = f"slurmctld's clock differs from ours; munge refuses every call at {MUNGE_TTL_S} s: synchronise the clocks"
    return _fact("clock", f"{ahead:+.0f} s", note, abs(ahead) < SKEW_BAD_S)


def _fact(name: str, value: str, note: str, ok: bool) -> Fact:
    return {"name": name, "value": value, "note": note, "ok": ok}


def _message_timeout(value: str, write_limit_s: float) -> Fact:
    patient = number(value) > write_limit_s
    note = (
        f"Slurm's commands wait longer than Relume ({write_limit_s:g} s), which then reads before it repeats anything"
        if patient
        else f"Slurm's commands give up before Relume does ({write_limit_s:g} s)"
    )
    return _fact("MessageTimeout", value, note, True)


def _job_requeue(value: str) -> tuple[str, bool]:
    if value != "0":
        return "jobs may be requeued unless they say --no-requeue", True
    return "a job may be requeued only if it says --requeue; relume sbatch adds it, other jobs are only watched", True


def _kill_wait(value: str) -> tuple[str, bool]:
    return f"ranks that ignore SIGTERM keep a requeued job COMPLETING for {value}", True


def _unkillable(value: str) -> tuple[str, bool]:
    return f"a process stuck in the kernel keeps it COMPLETING for {value}, then its node is drained", True


def _slurmd_timeout(value: str) -> tuple[str, bool]:
    if number(value) == 0:
        return (
            "Slurm never sets a silent node DOWN: without the right to update nodes, a lost node keeps its job",
            False,
        )
    return f"without the right to update nodes, Slurm gives a silent node up after about {value}", True


def _return_to_service(value: str) -> tuple[str, bool]:
    notes = {
        "0": "a node that was DOWN stays out until somebody resumes it",
        "1": "a node that was DOWN for its silence comes back by itself; Relume's drain stays",
        "2": "a node that was DOWN for any reason comes back by itself; Relume's drain stays",
    }
    return notes.get(value, "not a value that Relume knows"), value in notes


def _min_job_age(value: str) -> tuple[str, bool]:
    if 0 < number(value) < SHORTEST_MIN_JOB_AGE_S:
        return "an ended job leaves slurmctld before Relume has surely seen its end", False
    return "an ended job stays visible long enough", True


def _max_batch_requeue(value: str) -> tuple[str, bool]:
    return f"Slurm holds a batch job after {value} requeues for failed launches in a row", True


_JUDGES: dict[str, Callable[[str], tuple[str, bool]]] = {
    "JobRequeue": _job_requeue,
    "MaxBatchRequeue": _max_batch_requeue,
    "KillWait": _kill_wait,
    "UnkillableStepTimeout": _unkillable,
    "SlurmdTimeout": _slurmd_timeout,
    "ReturnToService": _return_to_service,
    "MinJobAge": _min_job_age,
}
