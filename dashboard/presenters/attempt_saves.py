"""What the saves of one attempt were like: asked for and in time or not, left out, in pieces, linked, without what."""

from __future__ import annotations

from controller.models import Attempt
from controller.queries import alarms, asked_saves
from controller.queries.alarms import Alarm
from controller.queries.asked_saves import AskedSaves
from controller.queries.job import JobStory
from dashboard import formats, words
from dashboard.words import Word

IN_TIME = Word("in time", "ok", "ok")
TOO_LATE = Word("too late", "bad", "bad")
AWAITED = Word("asked for", "run", "wait")


def sentences(story: JobStory, attempt: Attempt) -> list[str]:
    """In the order of their weight; [] where there is nothing to tell."""
    saving, asked = attempt.saving, _asked(story, attempt)
    left_out, pieces, linked = (saving.get(name, 0) for name in ("left_out", "in_pieces", "linked_bytes"))
    found = [_alarm_words(alarm) for alarm in alarms.of_attempt(attempt, story.commits)]
    found += [_asked_words(asked)] if asked.asked else []
    if steps := _unsaved(story, attempt):
        found.append(f"{formats.whole(steps)} step{'' if steps == 1 else 's'} after its last checkpoint lost")
    if saving.get("waived"):
        found.append(f"saved without {saving['waived']}, waived by the user")
    if left_out:
        found.append(f"{formats.whole(left_out)} save{'' if left_out == 1 else 's'} left out, one was still in flight")
    if pieces:
        found.append(f"{formats.whole(pieces)} written in pieces while training waited (memory limit)")
    if linked:
        found.append(f"{formats.size(linked)} not written again, they had not changed")
    return [*found, *_newest(story, attempt)]


def _alarm_words(alarm: Alarm) -> str:
    what = words.CHECKPOINT_ALARMS.get(alarm.code, alarm.code.replace("_", " "))
    often = f", {formats.whole(alarm.count)} times" if alarm.count > 1 else ""
    why = f", {words.STORAGE[alarm.cause]}" if alarm.cause in words.STORAGE else ""
    return f"{what}{often}{why}: {alarm.raw}"


def word(story: JobStory, attempt: Attempt) -> Word | None:
    """Of the saves that were asked for; None where none was."""
    asked = _asked(story, attempt)
    if not asked.asked:
        return None
    if asked.committed == asked.asked:
        return IN_TIME
    return AWAITED if attempt.ended_at is None else TOO_LATE


def _asked(story: JobStory, attempt: Attempt) -> AskedSaves:
    ended = attempt.ended_at.timestamp() if attempt.ended_at is not None else None
    return asked_saves.fold(attempt.saving, story.commits.get(attempt.generation, []), ended)


def _asked_words(asked: AskedSaves) -> str:
    said = f"{asked.committed} of {asked.asked} save{'' if asked.asked == 1 else 's'} asked for committed"
    if asked.left_s is not None:
        said += f", {formats.duration(asked.left_s)} before the end"
    if asked.short_s is not None:
        said += f"; the end came {formats.duration(asked.short_s)} after the one that was not"
    return said


def _unsaved(story: JobStory, attempt: Attempt) -> int:
    """Steps of an attempt that ended which no checkpoint of its own, nor the one it began from, holds."""
    if attempt.ended_at is None or attempt.step is None or attempt.outcome == "finished":
        return 0
    steps = [step for step, _ in story.commits.get(attempt.generation, [])]
    return max(attempt.step - max([attempt.start_step or 0, *steps]), 0)


def _newest(story: JobStory, attempt: Attempt) -> list[str]:
    """Whether the last checkpoint of the attempt was read back, where the page knows it."""
    own = [c for c in story.checkpoints if c.generation == attempt.generation and c.state == "committed"]
    newest = max((c for c in own if not c.on_nodes), key=lambda c: c.step, default=None)
    if newest is None:
        return []
    read = "read back from storage" if newest.verified_at is not None else "not read back yet"
    return [f"its newest checkpoint, {formats.whole(newest.step)}, is {read}"]
