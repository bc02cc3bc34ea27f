"""The page of one training job: the sentences at the top, the six values, and the tables below."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.clock import aware
from controller.decision import silence
from controller.decision.facts import HOLDERS
from controller.decision.policy import Budget
from controller.queries.job import JobStory
from controller.queries.phases import stamps_of
from dashboard import formats, words
from dashboard.presenters import saving
from dashboard.presenters.incident import IncidentView, cost_of, incident_view, recovery_of
from dashboard.presenters.job_tables import AttemptRow, CheckpointRow, attempt_row, checkpoint_note, checkpoint_row
from dashboard.presenters.job_values import TimePart, Value, time_json, time_parts, values_of
from dashboard.presenters.pace import Pace, pace_of
from dashboard.words import Word


@dataclass(frozen=True)
class Head:
    """`text` follows the state's word; `since` and `since_words` are an age that the browser keeps counting."""

    word: Word
    text: str
    since: datetime | None
    since_words: str


@dataclass(frozen=True)
class Why:
    """Why it restarted or stopped, with what it cost and whether the run is the same. `said` is followed by a time."""

    said: str
    at: datetime
    summary: str
    reason: str
    cost: str
    incident: int
    verified: bool
    answer: str


@dataclass(frozen=True)
class JobPage:
    story: JobStory
    name: str
    title: str
    head: Head
    why: Why | None
    quiet: str
    values: list[Value]
    time_total: str
    time_parts: list[TimePart]
    time_json: dict[str, Any] | None
    ettr: str
    incidents: list[IncidentView]
    attempts: list[AttemptRow]
    slurm_jobs: int
    checkpoints: list[CheckpointRow]
    checkpoint_note: str
    saving: str
    may_save: bool
    save_asked: bool
    pace: Pace


def job_page(story: JobStory, budget: Budget) -> JobPage:
    job = story.job
    name = job.name or "training job"
    newest = story.incidents[0] if story.incidents else None
    word = words.of_job(job.state, newest.cause if newest else None)
    pace = pace_of(job, story.attempt, story.budget.ettr)
    views = [incident_view(i, story.tenants) for i in story.incidents]
    return JobPage(
        story=story,
        name=name,
        title=f"{word.text}{'' if job.step is None else f', step {formats.whole(job.step)}'} · {name}",
        head=_head(story, word),
        why=_why(views),
        quiet=_quiet(story),
        values=values_of(story, pace, budget),
        time_total=formats.units(story.budget.total, story.budget.unit_s),
        time_parts=time_parts(story.budget),
        time_json=time_json(story),
        ettr=formats.percent(story.budget.ettr),
        incidents=views,
        attempts=[attempt_row(story, k) for k in range(len(story.attempts) - 1, -1, -1)],
        slurm_jobs=len({a.slurm_job_id for a in story.attempts}),
        checkpoints=[checkpoint_row(story, c) for c in story.checkpoints],
        checkpoint_note=checkpoint_note(story),
        saving=saving.advice(story),
        may_save=saving.may_save(story),
        save_asked=saving.asked(story),
        pace=pace,
    )


def _quiet(story: JobStory) -> str:
    """Why nothing need be heard from the job now, so that no timer runs; "" for a job that should speak."""
    job = story.job
    if job.state not in ("starting", "training", "recovering", "verifying"):
        return ""
    why = story.excuse
    if job.view.get("missing"):
        return f"{why}: what it does now is unknown, and nothing is concluded from that"
    if why is not None and job.view["base"] != "PENDING":
        return f"Slurm job {job.slurm_job_id} {why}: its silence is expected, and no timer runs"
    reserved = not job.view.get("reservation")
    said = [f"{n.name} {w}" for n in story.quiet_nodes if (w := silence.of_node(n.flags, reserved_for_others=reserved))]
    return f"{', '.join(said)}: silence from there is expected, and no timer runs" if said else ""


def _head(story: JobStory, word: Word) -> Head:
    job, attempt = story.job, story.attempt
    of = f"attempt {attempt.generation} of {len(story.attempts)}" if attempt else "attempt 1"
    step = "" if job.step is None else f", step {formats.whole(job.step)}"
    restarts = len(story.attempts) - 1
    if job.state == "queued":
        reason = _waits_for(job.view)
        return Head(word, of + (f", {reason}" if reason not in ("", "None") else ""), job.state_at, "in the queue")
    if job.state in ("training", "verifying"):
        since = attempt.launched_at or attempt.created_at if attempt and restarts else job.created_at
        said = "since the last restart" if restarts else "since it was submitted, no restart"
        return Head(word, of + step, since, said)
    if job.state == "recovering":
        live = story.live_incident
        since = (live.fault_at or live.detected_at) if live else job.state_at
        return Head(word, _recovering(story), since, "since the fault")
    if job.state == "stopped":
        incident = story.incidents[0] if story.incidents else None
        return Head(word, (incident.summary if incident else job.state_reason) + step, job.state_at, "ago")
    if job.state == "finished":
        took = formats.duration(story.budget.total * story.budget.unit_s)
        said = f"step {formats.whole(job.step)} in {took}, " if job.step is not None else f"in {took}, "
        return Head(word, said + _restarts(restarts), None, "")
    if job.state == "cancelled":
        good = story.newest_good
        said = "before the first step" if job.step is None else f"at step {formats.whole(job.step)}"
        return Head(word, said + (f", checkpoint {formats.whole(good.step)} kept" if good else ""), None, "")
    return Head(word, of, job.state_at, "in this state")


def _waits_for(view: dict[str, Any]) -> str:
    """Slurm's reason; for a hold, whose wish it is."""
    holder = HOLDERS.get(str(view.get("hold_kind") or ""))
    return f"held by {holder}" if holder else str(view.get("reason") or "")


def _recovering(story: JobStory) -> str:
    """What is waited for, in the order of the recovery."""
    live, attempt = story.live_incident, story.attempt
    if live is not None and live.state in ("open", "diagnosed", "acting"):
        return "holding the node and requeueing" if live.suspects else "requeueing"
    hit = live.attempt.generation if live is not None and live.attempt is not None else 0
    if attempt is None or attempt.generation <= hit:
        return "requeued, waiting for nodes"
    return f"attempt {attempt.generation} has nodes, loading" if attempt.launched_at else "starting again"


def _restarts(count: int) -> str:
    return "no restart" if count <= 0 else f"{count} restart{'s' if count > 1 else ''}"


def _why(views: list[IncidentView]) -> Why | None:
    """The newest incident that a person would call the reason."""
    for view in views:
        incident = view.incident
        if incident.state in ("abandoned", "observed_only"):
            continue
        recovery = recovery_of(incident)
        requeued = next((x.at for x in stamps_of(recovery.stamps if recovery else {}) if x.name == "requeued"), None)
        at = aware(requeued) if requeued is not None else incident.fault_at or incident.detected_at
        said = "Restarted at" if requeued is not None else "Stopped at"
        verified = view.verify_word.tone == "ok"
        cost = cost_of(recovery)
        return Why(said, at, incident.summary, incident.reason, cost, incident.pk, verified, view.verify_answer)
    return None
