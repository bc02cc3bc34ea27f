"""From opinions to the assessment: which one is the job's verdict, and what no judge may decide alone.

- a node is drained on the job's own word only where the policy trusts it, or an independent job said so of it before;
  otherwise it is withheld, and excluded;
- a node that is out already is not drained again;
- a finished run is not requeued; nor is one that still trains."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from controller.decision.assess.judges.history import by_another_job, seen_before
from controller.decision.assess.judges.table import CAUSES, ENDINGS, MACHINES, SOFT
from controller.decision.assess.opinion import ALREADY_OUT, Charge, Opinion
from controller.decision.assess.roles import CLEARS, cascades, weight
from controller.decision.assess.view import View, before, independent, onset
from controller.decision.assessment import HIGH, LOW, MEDIUM, Assessment
from controller.decision.evidence import Evidence

# An older fault wins over a younger one only by more than clocks and logs are apart.
OLDER_BY_S = 30.0


def opinions(view: View) -> list[Opinion]:
    """The job's own verdict first, then whatever else accuses a machine."""
    machines = _said(MACHINES, view)
    if machines:
        return machines
    endings, causes = _said(ENDINGS, view), _said(CAUSES, view)
    if endings:
        earlier = [c for c in causes if before(c.onset, endings[0].onset, OLDER_BY_S) and c.verdict != "fabric"]
        return [*_oldest_first(earlier), *endings][:1]
    if causes:
        return _oldest_first(causes)[:1]
    return _soft(view)


def _said(judges: Sequence[object], view: View) -> list[Opinion]:
    found = [judge(view) for judge in judges]  # type: ignore[operator]
    return [opinion for opinion in found if opinion is not None]


def _soft(view: View) -> list[Opinion]:
    """The first that applies. Where nobody knows the cause, what was seen on a node before counts against it."""
    found = _said(SOFT, view)[:1]
    if found and found[0].verdict in ("hang_unattributed", "unknown"):
        known = seen_before(view)
        if known is not None and any(charge.drain for charge in known.charges) and known != found[0]:
            found.append(known)
    return found


def _oldest_first(found: list[Opinion]) -> list[Opinion]:
    """In the order of the table, but what is known to have come first goes before."""
    best: list[Opinion] = []
    for opinion in found:
        if not best or before(opinion.onset, best[0].onset, OLDER_BY_S):
            best = [opinion]
    return best


def merged(view: View, found: Sequence[Opinion]) -> Assessment:
    lead = found[0] if found else _nothing(view)
    charges = _charges(found)
    drain, withheld, actions = _drains(view, charges)
    exclude = tuple(sorted(n for n, charge in charges.items() if charge.exclude or charge.drain))
    agreed = (e for node in drain for e in by_another_job(view, node, charges[node].by))
    carries = [*(e for opinion in found for e in opinion.proof), *agreed]
    proof = _ids(carries)
    return Assessment(
        verdict=lead.verdict,
        confidence=lead.confidence,
        why="; ".join(dict.fromkeys(opinion.why for opinion in (found or [lead]))),
        suspect_nodes=_union(opinion.suspects for opinion in found),
        suspect_ranks=lead.ranks,
        suspect_gpu=lead.gpu,
        xid=lead.xid,
        drain=drain,
        exclude=exclude,
        withheld=withheld,
        requeue=lead.requeue,
        budget=lead.budget,
        requeue_delay_s=max((o.delay_s for o in found), default=lead.delay_s),
        requeue_limit=lead.limit if lead.requeue is not False else None,
        node_actions={**{n: t for o in reversed(found) for n, t in o.actions.items()}, **actions},
        follow_up=tuple(dict.fromkeys(t for o in (found or [lead]) for t in o.follow_up)),
        notes=tuple(dict.fromkeys((*(t for o in (found or [lead]) for t in o.notes), *_unknown(view)))),
        proof=proof,
        cascade=_ids(_besides((*cascades(view), *view.echoes), carries)),
        clears=_ids(_besides((e for e in view.items if weight(view, e) == CLEARS), carries)),
        per_node={n: v for o in reversed(found) for n, v in o.per_node.items()},
        onset=lead.onset if lead.onset is not None else onset(lead.proof),
        stop=lead.stop,
    )


def _besides(items: Iterable[Evidence], proof: Sequence[Evidence]) -> Iterable[Evidence]:
    """One line may give several signs: where one of them is proof, the line is."""
    ids, lines = {e.id for e in proof}, {_line(e) for e in proof if e.raw}
    return (e for e in items if e.id not in ids and _line(e) not in lines)


def _line(item: Evidence) -> tuple[str, str | None, int | None]:
    return item.raw, item.node, item.rank


def _charges(found: Sequence[Opinion]) -> dict[str, Charge]:
    by_node: dict[str, Charge] = {}
    for charge in (c for opinion in found for c in opinion.charges):
        known = by_node.get(charge.node)
        by_node[charge.node] = charge if known is None else replace(
            known,
            by=(*known.by, *charge.by),
            drain=known.drain or charge.drain,
            exclude=known.exclude or charge.exclude,
        )  # fmt: skip
    return by_node


def _drains(view: View, charges: dict[str, Charge]) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]:
    """-> (to drain, withheld, what to do with those that are out already)."""
    drain, withheld, actions = [], [], {}
    facts = {view.names.canonical(name): fact for name, fact in view.case.node_facts.items()}
    for node, charge in sorted(charges.items()):
        fact = facts.get(node)
        if not charge.drain:
            continue
        if fact is not None and fact.flags & ALREADY_OUT:
            actions[node] = "already drained; keep its reason, do not overwrite"
        elif fact is not None and fact.down:
            actions[node] = "already DOWN; add our reason only if Slurm has none"
        elif view.case.trusted or _not_alone(view, charge):
            drain.append(node)
        else:
            withheld.append(node)
    return tuple(drain), tuple(withheld), actions


def _not_alone(view: View, charge: Charge) -> bool:
    """Whether anybody but this job's own processes accuses the node."""
    return bool(by_another_job(view, charge.node, charge.by)) or any(
        independent(e, view.case.run_id) for e in charge.by
    )


def _union(groups: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for group in groups for name in group}))


def _ids(items: Iterable[Evidence]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.id for item in items))


def _unknown(view: View) -> tuple[str, ...]:
    """What could not be read is unknown, not clean."""
    texts = {
        "kernel": "the kernel log could not be read: unknown, not clean",
        "job_log": "the job's log could not be read",
    }
    return tuple(texts.get(key, f"{key} could not be read") for key in sorted(view.case.unreadable))


def _nothing(view: View) -> Opinion:
    case = view.case
    if case.still_training or case.finished:
        return Opinion("none", HIGH, "nothing failed", requeue=False, budget="none")
    trained_to_the_end = view.of("trainer.finished")
    if trained_to_the_end:
        return Opinion("none", MEDIUM, "the training said that it is complete", trained_to_the_end, requeue=False,
                       budget="none")  # fmt: skip
    often = case.same_before >= 2
    stop = "it ended the same way three times, and nobody knows why" if often else ""
    return Opinion("unknown", LOW, "no sign says what it was", requeue=not often, budget="infra", stop=stop)
