"""The detector of stalls: a run that stands still longer than it ever does, and which rank stopped first. Pure.

Theory. In lockstep training one stuck rank stops all of them within a step, each waiting in its own way, so a rank that
stands still accuses nobody, and while one rank still does what takes long (a save, an evaluation) the others may wait.
It is a stall when every rank that can make progress has outstayed the limit of what it is doing; whose it is, is
`stall_suspects`' matter. A hang alone holds and excludes no node: most hangs are software.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.decision.attempt_facts import AttemptFact, RankProgress
from controller.decision.evidence import JOB, Evidence
from controller.decision.facts import SubjectFacts
from controller.decision.findings import HANG, Finding, clue_of
from controller.decision.policy import Policy
from controller.decision.stall_limits import OUT_OF_STEP, WORDS, kind_of, limit_s, made_steps
from controller.decision.stall_suspects import BEAT_LOST_S, Scene, Standing, beat_lost, suspects

# An agent that is late by less may speak again: until then nobody knows what its ranks do.
MUTE_S = 30.0
NAMED = 16


@dataclass(frozen=True)
class Stalled:
    """A run that stands still. `suspects`: ranks in order, () where nothing tells them apart; `why` in words."""

    standing: tuple[Standing, ...]
    suspects: tuple[int, ...] = ()
    why: str = ""


def stalled(subject: SubjectFacts, now: float, policy: Policy) -> Finding | None:
    """Every rank has outstayed its limit, and other signs have had their time to come in."""
    found = look(subject, now, policy)
    if found is None or any(s.over_s < policy.stall.settle_s for s in found.standing):
        return None
    last = max(s.since for s in found.standing)
    return Finding(
        HANG,
        _reason(found),
        ranks=found.suspects,
        clues=tuple(clue_of(piece, stance, now) for piece, stance in _pieces(subject.run_id, found)),
        fault_at=last,
        last_good_at=last,
    )


def look(subject: SubjectFacts, now: float, policy: Policy) -> Stalled | None:
    """The stall as it stands, also while other signs are waited for; None while anything may still be in order."""
    attempt, slurm = subject.live_attempt, subject.slurm
    if attempt is None or attempt.finished or subject.requeued_since or slurm is None:
        return None
    if slurm.base != "RUNNING" or slurm.completing or any(subject.excuse(rank.node) for rank in attempt.ranks):
        return None
    silent = {a.node: now - a.received_at for a in attempt.agents if a.state != "ended"}
    if any(policy.limits.agent_silent_s < age <= MUTE_S for age in silent.values()):
        return None
    mute = frozenset(node for node, age in silent.items() if age > MUTE_S)
    standing = [_stand(rank, attempt, now, policy) for rank in attempt.ranks if rank.node not in mute]
    counted = _in_step([s for s in standing if s is not None], attempt)
    if not counted or any(s.over_s < 0.0 for s in counted):
        return None
    return Stalled(tuple(counted), *suspects(Scene(attempt, tuple(counted), mute)))


def evidence(subject: SubjectFacts, now: float, policy: Policy) -> tuple[Evidence, ...]:
    """The same as pieces that diagnosis can weigh with those of other layers."""
    found = look(subject, now, policy)
    return () if found is None else tuple(piece for piece, _ in _pieces(subject.run_id, found))


# --- who stands still ----------------------------------------------------------------------------------------------


def _stand(rank: RankProgress, attempt: AttemptFact, now: float, policy: Policy) -> Standing | None:
    """None for a rank that can make no progress any more, or of which nobody knows whether it tells any."""
    kind = kind_of(rank, attempt)
    if rank.state == "exited" or kind is None:
        return None
    since = rank.progressed_at if rank.phase is not None else _launched(attempt)
    if since is None:
        return None
    since = max(since, attempt.counts_from)
    return Standing(rank, kind, since, now - since, limit_s(kind, attempt, policy.stall))


def _launched(attempt: AttemptFact) -> float | None:
    """A program that never tells its progress looks as if it never began: only where another rank or an earlier attempt
    did tell is it one that should."""
    tells = "startup" in attempt.learned or any(rank.phase is not None for rank in attempt.ranks)
    return attempt.launched_at if tells else None


def _in_step(standing: list[Standing], attempt: AttemptFact) -> list[Standing]:
    """Without those that never made a step while others made several: such a program tells steps on some ranks only."""
    furthest = max((s.rank.step for s in standing if s.rank.step is not None), default=0)
    if furthest - (attempt.start_step or 0) < OUT_OF_STEP:
        return standing
    return [s for s in standing if made_steps(s.rank, attempt)]


# --- in words --------------------------------------------------------------------------------------------------------


def _reason(found: Stalled) -> str:
    most = max(found.standing, key=lambda s: s.age_s)
    text = f"no progress for {most.age_s:.0f} s while {WORDS[most.kind]} (limit {most.limit_s:.0f} s)"
    if not found.suspects:
        return f"{text}; nothing tells the {len(found.standing)} ranks apart, so none is named"
    names = ", ".join(map(str, found.suspects[:NAMED]))
    return f"{text}; rank {names} {found.why}"


def _pieces(run_id: str, found: Stalled) -> list[tuple[Evidence, str]]:
    """Each suspect on its own, the others as one line for each thing that they do."""
    named = [s for s in found.standing if s.rank.rank in found.suspects]
    pieces = [(_of_rank(run_id, s), "accuses") for s in named[:NAMED]]
    pieces += [(_silent(run_id, s), "accuses") for s in named[:NAMED] if beat_lost(s.rank)]
    groups: dict[tuple[str, int], list[Standing]] = {}
    for s in found.standing:
        if s not in named:
            groups.setdefault((s.kind, -1 if s.rank.step is None else s.rank.step), []).append(s)
    return pieces + [(_of_group(run_id, members), "soft") for _, members in sorted(groups.items())][:NAMED]


def _of_rank(run_id: str, s: Standing) -> Evidence:
    return _piece(run_id, "stalled", s, f"rank {s.rank.rank} on {s.rank.node}: {_doing(s)}", str(s.rank.rank))


def _of_group(run_id: str, members: Sequence[Standing]) -> Evidence:
    """Dated by the first of them; it speaks of no rank in particular."""
    first = min(members, key=lambda s: (s.since, s.rank.rank))
    piece = _piece(
        run_id, "stalled", first, f"{len(members)} ranks: {_doing(first)}", f"{first.kind}:{first.rank.step}"
    )
    return replace(piece, node=None, rank=None, count=len(members))


def _silent(run_id: str, s: Standing) -> Evidence:
    age = s.rank.heard_at - (s.rank.beat_at or s.rank.heard_at)
    raw = f"rank {s.rank.rank} on {s.rank.node}: its heartbeat thread has not run for {age:.0f} s"
    piece = _piece(run_id, "silent", s, "", str(s.rank.rank))
    return replace(piece, raw=raw, at=s.rank.beat_at, attrs={"age_s": round(age, 1), "limit_s": BEAT_LOST_S})


def _piece(run_id: str, name: str, s: Standing, what: str, who: str) -> Evidence:
    step = {} if s.rank.step is None else {"step": s.rank.step}
    return Evidence(
        id=f"progress:{name}:{who}",
        code=f"progress.{name}",
        layer="progress",
        source="progress",
        origin=JOB,
        raw=f"{what}, no progress for {s.age_s:.0f} s (limit {s.limit_s:.0f} s)",
        at=s.since,
        node=s.rank.node,
        rank=s.rank.rank,
        attrs={"phase": s.rank.phase or "starting", "age_s": round(s.age_s, 1), "limit_s": round(s.limit_s, 1), **step},
        job=run_id,
    )


def _doing(s: Standing) -> str:
    return WORDS[s.kind] if s.rank.step is None else f"{WORDS[s.kind]}, step {s.rank.step}"
