"""Hangs: who did not come. Most hangs are software, so a hang alone drains nobody and excludes nobody."""

from dataclasses import replace

from controller.decision.assess.collective_words import CODES
from controller.decision.assess.collectives import MISMATCH, Suspect, behind
from controller.decision.assess.deaths import ABORTED, deaths, killed_by
from controller.decision.assess.judges.program import NOT_COME
from controller.decision.assess.opinion import Opinion
from controller.decision.assess.standing import LIBRARY, elsewhere, standings
from controller.decision.assess.view import View, onset
from controller.decision.assess.words import listed, nodes_of, quoted, ranks_of, whom
from controller.decision.assessment import LOW, MEDIUM
from controller.decision.evidence import Evidence

STUCK = "nccl.watchdog_stuck"
PROGRESS = ("progress.stalled", "progress.silent")


def hang(view: View) -> Opinion | None:
    named = _by_numbers(view) or _missing_in_barrier(view) or _by_stacks(view)
    return named or _stuck_watchdog(view) or _silent(view) or _nobody(view)


def mismatched_calls(view: View) -> Opinion | None:
    """Different operations or sizes under one number: the few that differ."""
    odd = [s for s in _behind(view) if s.kind == MISMATCH]
    if not odd:
        return None
    proof = _proof(view, odd)
    return Opinion(
        "user_code", MEDIUM, "; ".join(dict.fromkeys(s.why for s in odd)), proof,
        ranks=tuple(sorted({s.rank for s in odd})), requeue=False, budget="user", onset=onset(proof),
        stop="the ranks do not call the same collectives: an error of the program",
    )  # fmt: skip


def _behind(view: View) -> tuple[Suspect, ...]:
    return behind(e for e in view.items if e.code in CODES)


def _proof(view: View, suspects: list[Suspect]) -> tuple[Evidence, ...]:
    ids = {name for s in suspects for name in s.proof}
    return tuple(e for e in view.items if e.id in ids)


def _opinion(
    view: View, why: str, proof: tuple[Evidence, ...], ranks: tuple[int, ...] = (), confidence: str = LOW,
    begin: float | None = None, nodes: tuple[str, ...] = (),
) -> Opinion:  # fmt: skip
    placed = {n for r in ranks if (n := view.names.of_rank(r)) is not None} | set(nodes)
    again = view.case.same_before > 0
    return Opinion(
        "hang_unattributed", confidence, why, proof, suspects=tuple(sorted(placed)), ranks=ranks, requeue=not again,
        limit=None if again else 1, onset=begin if begin is not None else onset(proof),
        stop="the same hang as before, with no step gained: check the nodes, and look at the program" if again else "",
        follow_up=("check the job's nodes before the next start",) if again else (),
        notes=("a second identical hang without progress stops the automatic requeue",) if not again else (),
    )  # fmt: skip


def _by_numbers(view: View) -> Opinion | None:
    late = [s for s in _behind(view) if s.kind != MISMATCH]
    if not late:
        return None
    return _opinion(view, "; ".join(dict.fromkeys(s.why for s in late)), _proof(view, late),
                    tuple(sorted({s.rank for s in late})), MEDIUM)  # fmt: skip


def _missing_in_barrier(view: View) -> Opinion | None:
    """A monitored barrier, or the flight recorder's analyser, names the ranks that did not come."""
    barrier = tuple(e for e in view.of("gloo.timeout") if e.attrs.get("missing"))
    named = {int(r) for e in barrier for r in str(e.attrs["missing"]).split(",") if r.isdecimal() and len(r) < 8}
    told = tuple(e for e in view.of("collective.mismatch") if e.attrs.get("kind") in NOT_COME)
    ranks = tuple(sorted({*named, *ranks_of(told)}))
    if not ranks:
        return None
    what = "a barrier" if barrier else "a collective"
    return _opinion(view, f"{whom(ranks, ())} did not come to {what}", (*barrier, *told), ranks, MEDIUM)


def _by_stacks(view: View) -> Opinion | None:
    """A rank that stands elsewhere while all others that were looked at wait. It names that rank and never a node; it
    is sure only beside the run's own progress, and where that names no other rank."""
    odd, waiting = elsewhere(view)
    if not odd:
        return None
    ranks = tuple(s.rank for s in odd)
    stalls = view.of(*PROGRESS)
    others = ranks_of(stalls)
    agreed = bool(stalls) and (not others or bool(set(ranks) & set(others)))
    told = "; ".join(f"rank {s.rank} {s.place} ({quoted(s.item, 100)})" for s in odd)
    why = f"{told}, while {whom(tuple(s.rank for s in waiting), ())} wait{'s' if len(waiting) == 1 else ''} for others"
    proof = (*(s.item for s in odd), *(e for e in stalls if e.rank in ranks))
    return replace(_opinion(view, why, proof, ranks, MEDIUM if agreed else LOW), suspects=())


def _stuck_watchdog(view: View) -> Opinion | None:
    found = view.of(STUCK)
    if not found:
        return None
    ranks = ranks_of(found)
    begins = [e.at - s for e in found if e.at is not None and isinstance(s := e.attrs.get("seconds"), int | float)]
    few = ranks if len(ranks) <= 2 else ()
    for_s = next((f" for {e.attrs['seconds']} s" for e in found if "seconds" in e.attrs), "")
    return _opinion(view, f"the watchdog of {whom(few or ranks, ())} was stuck{for_s} in a call of CUDA or NCCL: "
                    "a hang of the program or of its GPU", found, few, begin=min(begins) if begins else None,
                    nodes=nodes_of(found) if few else ())  # fmt: skip


def _silent(view: View) -> Opinion | None:
    """Ranks that stopped making progress while the others wait: suspects only where they are the fewer."""
    found = view.of(*PROGRESS)
    if not found:
        return None
    ranks = ranks_of(found)
    world = len(view.case.rank_nodes)
    few = ranks if ranks and world and 2 * len(ranks) < world and len(ranks) <= 2 else ()
    return _opinion(view, f"{whom(ranks, nodes_of(found) if not ranks else ())} made no progress", found, few)


def _nobody(view: View) -> Opinion | None:
    waiting = (*view.of(*LIBRARY), *(s.item for s in standings(view)))
    aborted = tuple(d.item for d in killed_by(deaths(view), ABORTED))
    if not waiting and not aborted:
        return None
    proof = (*waiting, *aborted)
    said = f"{whom(ranks_of(waiting), ())} waited in vain ({quoted(waiting[0], 100)})" if waiting else (
        f"{whom(ranks_of(aborted), nodes_of(aborted))} aborted")  # fmt: skip
    text = said + ", and nothing shows who did not come"
    if aborted and not waiting and len(aborted) > 1:
        text = f"{listed(ranks_of(aborted))} aborted together: the rank that a table names first is no culprit for that"
    return _opinion(view, text, proof)
