"""The demonstration's report: one JSON object, made from the rows of the controller and the files of the two runs."""

from dataclasses import dataclass
from typing import Any

from deploy.demo.training import Outcome


@dataclass(frozen=True)
class Phases:
    """`seconds` and `sources` by the name of the stamp that ends the phase, in order; `rto_s` is their sum."""

    seconds: dict[str, float]
    sources: dict[str, str]
    rto_s: float | None


def phases_from(kill_at: float, stamps: dict[str, dict[str, Any]]) -> Phases:
    """Differences of consecutive stamps from the kill to the first new step, so that they sum to the recovery time.

    Stamps that do not exist are not invented; those before the kill (the last good sign) are no part of the recovery.
    """
    end = stamps.get("first_new_step")
    if end is None:
        return Phases({}, {}, None)
    inside = sorted((s["at"], name) for name, s in stamps.items() if kill_at < s["at"] <= end["at"])
    seconds, before = {}, kill_at
    for at, name in inside:
        seconds[name] = round(at - before, 6)
        before = at
    return Phases(seconds, {name: stamps[name]["source"] for name in seconds}, round(end["at"] - kill_at, 6))


def differences(run: Outcome, reference: Outcome) -> list[str]:
    """Where the interrupted run's kept curve and the reference differ; empty when they agree to the bit."""
    found = []
    for rank, curve in reference.losses.items():
        other = run.losses.get(rank, {})
        wrong = [step for step in sorted(curve.keys() | other.keys()) if curve.get(step) != other.get(step)]
        if wrong:
            found.append(f"rank {rank}: {len(wrong)} steps differ, the first is {wrong[0]}")
    if run.parameters_digest != reference.parameters_digest:
        found.append("the final parameters differ")
    if reference.steps == 0:
        found.append("the reference has no steps")
    return found


def failed_checks(detail: dict[str, Any]) -> list[str]:
    """Names of the checks that failed on any rank of any attempt."""
    names = set()
    for ranks in detail.get("verification", {}).values():
        for stages in ranks.values():
            for stage in stages.values():
                names |= {check["name"] for check in stage["checks"] if check["outcome"] == "FAIL"}
    return sorted(names)


def build(detail: dict[str, Any], kill_at: float, run: Outcome | None, reference: Outcome | None) -> dict[str, Any]:
    """`detail` is the controller's JSON of the training job at its end. `verified` needs the controller's word, and
    `bit_identical` the comparison of every rank's loss at every step and of the final parameters."""
    recovery = detail["recoveries"][0] if detail.get("recoveries") else {}
    stamps = recovery.get("stamps", {})
    phases = phases_from(kill_at, stamps)
    wrong = differences(run, reference) if run is not None and reference is not None else ["no comparison was made"]
    requeued = stamps.get("requeued")
    return {
        "verified": recovery.get("verification") == "PASS" and detail["state"] == "finished",
        "bit_identical": not wrong,
        "differences": wrong,
        "failed_checks": failed_checks(detail),
        "state": detail["state"],
        "state_reason": detail["state_reason"],
        "reference": reference.summary() if reference else None,
        "run": run.summary() if run else None,
        "steps": run.steps if run else detail.get("step"),
        "rpo_steps": recovery.get("rpo_steps"),
        "rpo_s": recovery.get("rpo_s"),
        "rto_s": phases.rto_s,
        "phases": phases.seconds,
        "phase_sources": phases.sources,
        "requeue_confirmed_s": round(requeued["at"] - kill_at, 3) if requeued else None,
        "run_id": detail["run_id"],
    }
