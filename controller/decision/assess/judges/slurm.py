"""What Slurm says of the job's end and of its nodes. The node that prints a line is not the one that it is about."""

from collections.abc import Mapping

from controller.decision.assess import law
from controller.decision.assess.opinion import Charge, Opinion
from controller.decision.assess.view import View, before, onset
from controller.decision.assess.words import listed, nodes_of, quoted
from controller.decision.assessment import HIGH, LOW, MEDIUM
from controller.decision.evidence import Evidence
from controller.decision.facts import NodeFact

LAUNCH_DELAY_S = 60.0
KILL_FAILED = "kill task failed"
# What a health check or Slurm itself writes when it takes a node out.
UNHEALTHY = (
    KILL_FAILED,
    "epilog",
    "prolog",
    "nhc",
    "health",
    "not responding",
    "gpu",
    "xid",
    "batch job complete",
)


def told_to_end(view: View) -> Opinion | None:
    """Preemption, requeue, time limit: whatever crashes around it is a consequence."""
    return _preempted(view) or _requeued(view) or _time_limit(view)


def _state(view: View) -> str:
    return view.case.slurm.base if view.case.slurm is not None else ""


def _job_state(view: View, *states: str) -> tuple[Evidence, ...]:
    return tuple(e for e in view.of("slurm.job_state") if e.attrs.get("state") in states)


def _preempted(view: View) -> Opinion | None:
    found = view.of("slurm.preempted") or _job_state(view, "PREEMPTED")
    if not found and _state(view) != "PREEMPTED":
        return None
    slurm = view.case.slurm
    queued = slurm is not None and (slurm.restarts > 0 or slurm.base in ("PENDING", "RUNNING", "REQUEUED"))
    ended = slurm is not None and slurm.base == "PREEMPTED" and not slurm.restarts
    again: bool | str = "already done by Slurm" if queued else (
        "only if Slurm does not queue it again by itself" if ended else
        "check first: Slurm requeues a preempted job by itself where its PreemptMode is REQUEUE"
    )  # fmt: skip
    return Opinion("preempted", HIGH, "the job had to make room for another; nothing failed", found, requeue=again,
                   budget="none", onset=onset(found))  # fmt: skip


def _requeued(view: View) -> Opinion | None:
    found = view.of("slurm.requeued") or _job_state(view, "REQUEUED")
    if not found:
        return None
    return Opinion(
        "requeued_by_controller", HIGH,
        "Slurm was told to requeue the job; refused connections and exit codes after that are its consequences",
        found, requeue="already done", budget="none", onset=onset(found),
    )  # fmt: skip


def _time_limit(view: View) -> Opinion | None:
    found = view.of("slurm.time_limit") or _job_state(view, "TIMEOUT", "DEADLINE")
    if not found:
        return None
    deadline = _state(view) == "DEADLINE"
    ignored = [e for e in view.of("signal.received") if e.attrs.get("ignored") is True]
    stuck = view.case.same_before > 0 and view.case.last_step is not None
    notes = [f"SIGTERM was ignored ({quoted(ignored[0])}), so no save followed it"] if ignored else []
    return Opinion(
        "time_limit", HIGH,
        "the job reached its time limit" + ("; it ignored SIGTERM and saved nothing more" if ignored else ""),
        (*found, *ignored), requeue=not (deadline or stuck), budget="none",
        notes=(*notes, "it goes on from the last committed checkpoint"),
        stop="no step was gained since the last time limit" if stuck else "its deadline has passed" if deadline else "",
        onset=onset(found),
    )  # fmt: skip


# --- nodes ----------------------------------------------------------------------------------------------------------


def node_down(view: View) -> Opinion | None:
    """Nodes that Slurm has lost. The job's own node only: another's state says nothing of it."""
    texts = (*view.of("slurm.node_failure"), *_job_state(view, "NODE_FAIL", "BOOT_FAIL"))
    lost = view.of("slurm.node_lost")
    ours = _facts(view)
    down = sorted({n for n, fact in ours.items() if fact.down and not fact.away} | set(nodes_of(lost)))
    if not texts and not lost and (not down or view.case.still_training):
        return None
    proof = (*texts, *lost, *(e for e in view.of("slurm.node_state") if e.node in down))
    again = "check first: Slurm requeues NODE_FAIL jobs by itself when Requeue=1"
    if not down:
        return Opinion("node_failure", MEDIUM if texts else LOW,
                       "Slurm ended the job for a node failure and does not say which node: the line's own node only "
                       "printed it", proof, requeue=again)  # fmt: skip
    reasons = "; ".join(f"{n} {ours[n].base} {ours[n].reason}".strip() if n in ours else f"{n} was lost" for n in down)
    return Opinion(
        "node_failure", HIGH, f"Slurm has {reasons}", proof, suspects=tuple(down),
        charges=tuple(Charge(n, tuple(e for e in proof if e.node == n)) for n in down), requeue=again,
        actions=dict.fromkeys(down, "already DOWN; add our reason only if Slurm has none"),
    )  # fmt: skip


def _facts(view: View) -> Mapping[str, NodeFact]:
    facts = {view.names.canonical(name): fact for name, fact in view.case.node_facts.items()}
    known = set(view.nodes)
    return {n: fact for n, fact in facts.items() if not known or n in known}


def unkillable(view: View) -> Opinion | None:
    """Processes that no signal ends: the node's own fault, or its storage's. Slurm drains it by itself."""
    texts = view.of("slurm.step_unkillable", "slurm.epilog_failed")
    facts = {view.names.canonical(n): f for n, f in view.case.node_facts.items()}
    drained = sorted(n for n, f in facts.items() if f.flags & {"DRAIN", "FAIL"} and _unhealthy(f))
    drained = [n for n in drained if not facts[n].down or KILL_FAILED in facts[n].reason.lower()]
    accused = sorted({*nodes_of(texts), *(drained if not view.nodes else [n for n in drained if n in view.nodes])})
    if not accused or (view.case.still_training and not texts):
        return None
    proof = (*texts, *(e for e in view.of("slurm.node_state") if e.node in accused))
    out = [n for n in accused if n in facts and facts[n].flags & {"DRAIN", "FAIL"}]
    many = law.many_at_once(view, {n: tuple(e for e in proof if e.node == n) for n in accused})
    reasons = {n: facts[n].reason if n in facts else "" for n in accused}
    why = "; ".join(f"{n}: {reason or 'processes could not be killed'}" for n, reason in reasons.items())
    return Opinion(
        "node_failure", LOW if many else MEDIUM, why, proof, suspects=() if many else tuple(accused),
        charges=() if many else tuple(Charge(n, tuple(e for e in proof if e.node == n)) for n in accused),
        requeue=False if view.case.cancelled_by_user else "only if the user did not cancel the job", budget="none",
        actions=dict.fromkeys(out, "already drained by Slurm; keep its reason, do not overwrite"),
        follow_up=tuple(f"check for left-over processes on {n} before it returns to service" for n in accused),
    )  # fmt: skip


def _unhealthy(fact: NodeFact) -> bool:
    reason = fact.reason.lower()
    return any(word in reason for word in UNHEALTHY)


def launch_failed(view: View) -> Opinion | None:
    found = view.of("slurm.launch_failed")
    if not found:
        return None
    nodes = nodes_of(found)
    if len(nodes) > law.FEW_NODES:
        return Opinion("slurm_infra", MEDIUM, f"Slurm could not start the job on {listed(nodes)}: what they share",
                       found, delay_s=LAUNCH_DELAY_S * 5)  # fmt: skip
    earlier = tuple(e for e in view.of("history.error") if e.attrs.get("of") == "slurm.launch_failed")
    past = [e for items in view.past for e in items if e.code == "slurm.launch_failed"]
    again = {n for n in nodes if any(e.node == n for e in (*earlier, *past)) or _twice(view, n, found)}
    text = quoted(found[0])
    return Opinion(
        "slurm_infra", MEDIUM, f"Slurm could not start the job on {listed(nodes) or 'a node'}: {text}",
        (*found, *(e for e in earlier if e.node in again)), suspects=nodes,
        charges=tuple(Charge(n, tuple(e for e in (*found, *earlier) if e.node == n), drain=n in again) for n in nodes),
        delay_s=LAUNCH_DELAY_S,
        actions={n: f"drain on the 2nd event on {n} (clock or munge fault)" for n in nodes if n not in again},
    )  # fmt: skip


def _twice(view: View, node: str, found: tuple[Evidence, ...]) -> bool:
    own = [e for e in found if e.node == node]
    return len({e.attrs.get("id") for e in own}) > 1 and any(before(a.at, b.at) for a in own for b in own)


def ended_by_somebody(view: View) -> Opinion | None:
    found = (*view.of("slurm.cancelled"), *_job_state(view, "CANCELLED"))
    if not (view.case.cancelled_by_user or _state(view) == "CANCELLED"):
        if not found:
            return None
        return Opinion("unknown", LOW, "Slurm ended the job, and no line says for what", found,
                       requeue="only if the user did not cancel the job", budget="none")  # fmt: skip
    return Opinion("none", HIGH, "somebody cancelled the job", found, requeue=False, budget="none",
                   stop="the job was cancelled")  # fmt: skip
