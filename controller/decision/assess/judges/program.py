"""The program's own errors: exceptions, assertions, mismatched collectives, bad addresses, crashes at the start."""

import itertools

from controller.decision.assess import gpus
from controller.decision.assess.deaths import BUS, SEGMENT, Death, deaths, killed_by
from controller.decision.assess.opinion import Charge, Opinion
from controller.decision.assess.roles import STRONG, WEAK, weight
from controller.decision.assess.view import DAY_S, View, before, events, onset
from controller.decision.assess.words import listed, nodes_of, quoted, ranks_of, whom
from controller.decision.assessment import HIGH, LOW, MEDIUM
from controller.decision.evidence import Evidence

# Kinds of mismatch where the calls are the same: a rank did not come, or came later. That is a hang.
NOT_COME = ("missing", "collective_state_mismatch")
ASSERTIONS = ("cuda.assertion", "cuda.device_assert")
ADDRESSES = ("cuda.illegal_access", "cuda.misaligned", "cuda.launch_failed")
LOCATED = ("xid.13", "xid.31")


def assertion(view: View) -> Opinion | None:
    found = view.of(*ASSERTIONS)
    return None if not found else Opinion(
        "user_code", HIGH, f"the program's own assertion failed on the GPU ({quoted(found[0])}): an error of the "
        "program, whoever repeats it", (*found, *view.of("nccl.cuda_failure")), ranks=ranks_of(found), requeue=False,
        budget="user", onset=onset(found), stop="an assertion of the program failed: it would fail again",
    )  # fmt: skip


def mismatch(view: View) -> Opinion | None:
    found = tuple(e for e in view.of("collective.mismatch") if e.attrs.get("kind") not in NOT_COME)
    return None if not found else Opinion(
        "user_code", HIGH, f"{whom(ranks_of(found), ())} called another collective than the others: {quoted(found[0])}",
        found, ranks=ranks_of(found), requeue=False, budget="user", onset=onset(found),
        stop="the ranks do not call the same collectives: an error of the program",
    )  # fmt: skip


def bad_address(view: View) -> Opinion | None:
    """An illegal access in the job, an Xid 13 or 31 in the kernel log, or both: the program, the first time."""
    said = tuple(e for e in view.of(*ADDRESSES) if weight(view, e) in (STRONG, WEAK))
    kernel = tuple(e for e in view.of("xid.*") if _application(view, e))
    if not said and not kernel:
        return None
    repeated = _same_place(view, kernel)
    if repeated:
        return _suspicious(view, repeated, (*kernel, *said))
    places = {
        str(e.node): "remember " + ", ".join(filter(None, (e.node, gpus.pci_of(e), str(e.attrs.get("location", "")))))
        for e in kernel if e.node
    }  # fmt: skip
    unread = "" if kernel or not said or view.case.read_clean else "; the kernel log was not read"
    lead = (said or kernel)[0]
    return Opinion(
        "user_code", MEDIUM if len(said) + len(kernel) > 1 or lead.code != "cuda.launch_failed" else LOW,
        f"{whom(ranks_of(said), () if said else nodes_of(kernel))}: {view.said(lead)[:90].split('. ')[0].rstrip('.')}"
        f"{unread}; the first time on this GPU, so the program and not the GPU",
        (*said, *kernel), ranks=ranks_of(said), requeue=view.case.same_before == 0, limit=1, budget="user",
        actions=places, notes=tuple(f"{text} for later comparison" for text in places.values()),
        onset=onset((*said, *kernel)),
        stop="the same illegal access as before: an error of the program" if view.case.same_before else "",
    )  # fmt: skip


def _application(view: View, item: Evidence) -> bool:
    row = view.row(item)
    return row is not None and row.verdict == "user_code" and weight(view, item) in (STRONG, WEAK)


def _same_place(view: View, kernel: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """Separate bursts on one place of one GPU within a day, in this set, in earlier attempts or remembered."""
    hit = []
    for item in kernel:
        if item.code not in LOCATED or not item.node:
            continue
        mine = [e for e in kernel if _place(e) == _place(item)]
        bursts = events(mine)
        near = any(not before(a[-1].at, b[0].at, DAY_S) for a, b in itertools.pairwise(bursts))
        earlier = any(_place(e) == _place(item) and not before(e.at, item.at, DAY_S) for p in view.past for e in p)
        told = any(
            e.node == item.node and e.attrs.get("of") == item.code and gpus.device_of(e) in ("", gpus.device_of(item))
            and str(e.attrs.get("location", _spot(item))) == _spot(item) and "location" in e.attrs
            for e in view.of("history.error")
        )  # fmt: skip
        if near or earlier or told:
            hit.append(item)
    return tuple(hit)


def _place(item: Evidence) -> tuple[str, str | None, str, str]:
    return item.code, item.node, gpus.device_of(item), _spot(item)


def _spot(item: Evidence) -> str:
    """GPC and TPC; the SM inside is finer than what fails."""
    return ",".join(str(item.attrs.get("location", "")).split(",")[:2])


def _suspicious(view: View, repeated: tuple[Evidence, ...], proof: tuple[Evidence, ...]) -> Opinion:
    nodes = nodes_of(repeated)
    first = repeated[0]
    return Opinion(
        "gpu_hardware", MEDIUM, f"{listed(nodes)}: {first.code.replace('.', ' ')} twice within a day on the same place "
        f"of GPU {gpus.device_of(first)}{' (' + _spot(first) + ')' if _spot(first) else ''}: no program hits it twice",
        proof, suspects=nodes, ranks=ranks_of(proof), gpu=gpus.device_of(first), xid=int(first.code.split(".")[1]),
        charges=tuple(Charge(n, tuple(e for e in repeated if e.node == n)) for n in nodes), budget="infra",
        follow_up=tuple(f"run a GPU diagnosis on {n} before it is used by this job again" for n in nodes),
        onset=onset(proof),
    )  # fmt: skip


def exception(view: View) -> Opinion | None:
    """A Python error that is not the echo of another failure; of several the first."""
    found = tuple(e for e in view.of("python.exception", "python.import_error") if weight(view, e) == STRONG)
    if not found:
        return None
    first = found[0]
    lead = tuple(e for e in found if e.at == first.at) if first.at is not None else found
    imports = first.code == "python.import_error"
    row = view.row(first)
    told = tuple(d.item for d in deaths(view) if d.by_program and d.item.rank in ranks_of(lead))
    again = view.case.same_before > 0
    early = view.never_trained or imports
    stop = "it cannot start: the program or its environment must be changed" if early else (
        "the program failed at the same place as before" if again else "")  # fmt: skip
    return Opinion(
        row.verdict if imports and row is not None else "user_code",
        HIGH if told or imports or len(lead) == 1 else MEDIUM,
        f"{whom(ranks_of(lead), ())} raised {first.attrs.get('type', 'an exception')}: {quoted(first)}"
        + ("; what others report after that is a consequence" if len(view.items) > len(lead) + len(told) else ""),
        (*lead, *told), ranks=ranks_of(lead), requeue=not (again or early), limit=None if again or early else 1,
        budget="user", onset=onset(lead), stop=stop,
    )  # fmt: skip


def crashed(view: View) -> Opinion | None:
    """Segmentation faults: of all at the start, the program as it was built; of one later, nobody can say."""
    found = killed_by(deaths(view), SEGMENT, BUS, 4, 8)
    if not found:
        return None
    proof = tuple(d.item for d in found)
    count = sum(_tasks(d) for d in found)
    early = view.never_trained or (view.case.last_step is None and count > 1)
    again = view.case.same_before > 0
    return Opinion(
        "user_code", MEDIUM if early or again else LOW,
        f"{count} task{'s' if count > 1 else ''} on {listed(nodes_of(proof)) or 'the job'} ended by signal "
        f"{found[0].signal}" + (" before the first step: the program or a library as it was built" if early else ""),
        proof, ranks=ranks_of(proof), requeue=not (early or again), limit=None if early or again else 1, budget="user",
        onset=onset(proof), stop="the program crashes as it starts: it must be rebuilt" if early or again else "",
    )  # fmt: skip


def _tasks(death: Death) -> int:
    """How many tasks `0,2-3` names."""
    count = 0
    for part in str(death.item.attrs.get("tasks", "")).split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and len(first) < 8:
            count += int(last) - int(first) + 1 if last.isdecimal() and len(last) < 8 and int(last) >= int(first) else 1
    return max(count, 1)


def ended_first(view: View) -> Opinion | None:
    """An exit of the program's own that is known to have come before everybody else's abort or time-out, of a rank
    that no library complains on: the others waited for it."""
    waited = view.of("nccl.watchdog_timeout", "nccl.watchdog_stuck", "gloo.timeout")
    later = (*waited, *(d.item for d in deaths(view) if d.signal is not None))
    told = ranks_of(e for e in view.items if e.layer == "library")
    found = [d for d in deaths(view) if d.by_program and d.item.rank is not None and d.item.rank not in told]
    first = [d for d in found if later and all(before(d.item.at, e.at, 1.0) for e in later)]
    if not first:
        return None
    lead = min(first, key=lambda d: (d.item.at or 0.0, d.item.rank or 0))
    again = view.case.same_before > 0
    return Opinion(
        "user_code", MEDIUM, f"{whom(ranks_of([lead.item]), ())} ended first, with exit code {lead.exit_code}; the "
        "others aborted after it", (lead.item,), ranks=ranks_of([lead.item]), requeue=not again,
        limit=None if again else 1, budget="user", onset=lead.item.at,
        stop="it ended at the same place as before" if again else "",
    )  # fmt: skip


def ended_by_itself(view: View) -> Opinion | None:
    """An exit code and no word why."""
    found = [d for d in deaths(view) if d.by_program]
    if not found:
        return None
    known = [d.item.at for d in found if d.item.at is not None]
    first = [d for d in found if d.item.at == min(known)] if known else found
    proof = tuple(d.item for d in first)
    again = view.case.same_before > 0
    text = next((quoted(e) for e in proof if e.attrs.get("message")), "")
    return Opinion(
        "user_code", LOW, f"{whom(ranks_of(proof), nodes_of(proof))} ended with exit code {first[0].exit_code}"
        + (f": {text}" if text else ", and no line says why"), proof, ranks=ranks_of(proof),
        requeue=not (again or view.never_trained), limit=1, budget="user", onset=onset(proof),
        stop="it ended at the same place as before" if again or view.never_trained else "",
    )  # fmt: skip
