"""The job's set-up: ports, limits, shared memory, GPUs that were not asked for, a start that takes longer than allowed;
and the one node whose driver does not work while its equals' does."""

from controller.decision.assess import law
from controller.decision.assess.opinion import Charge, Opinion
from controller.decision.assess.view import View, onset
from controller.decision.assess.words import listed, nodes_of, quoted, ranks_of, whom
from controller.decision.assessment import HIGH, LOW, MEDIUM
from controller.decision.evidence import Evidence

UNUSABLE = ("cuda.no_device", "cuda.driver", "cuda.unavailable")


def unusable_gpus(view: View) -> Opinion | None:
    """No usable GPU: of one node among equals its fault; of every node the job's set-up."""
    found = tuple(e for e in view.of(*UNUSABLE) if e.attrs.get("number") != 101)
    if not found:
        return _ordinal(view)
    failing = set(nodes_of(found))
    others = set(view.nodes) - failing
    alike = bool(view.case.facts.get("others_alike"))
    if failing and not alike and law.equals_are_well(view, failing) and len(failing) == 1:
        return _one_node(view, found, failing, drain=True, confidence=HIGH)
    if failing and not alike and (others or law.equals_are_well(view, failing)) and len(failing) <= max(len(others), 1):
        return _one_node(view, found, failing, drain=False, confidence=MEDIUM)
    mismatch = [e for e in found if e.code == "cuda.driver"]
    if len(failing) == 1 and mismatch and not alike:
        return _one_node(view, found, failing, drain=False, confidence=MEDIUM)
    return Opinion(
        "config", MEDIUM if len(failing) > 1 or alike else LOW,
        f"no usable GPU on {listed(sorted(failing)) or 'any node that speaks'} ({quoted(found[0])}): the same "
        "everywhere, so the job did not ask for GPUs or its image does not fit, and no node is at fault",
        found, ranks=ranks_of(found), requeue=False, budget="user", onset=onset(found),
        stop="no process sees a GPU: does the job ask for any (--gres, --gpus), and does its image fit the driver?",
    )  # fmt: skip


def _one_node(view: View, found: tuple[Evidence, ...], failing: set[str], *, drain: bool, confidence: str) -> Opinion:
    well = sorted(view.healthy - failing) or sorted(set(view.nodes) - failing)
    nodes = tuple(sorted(failing))
    return Opinion(
        "node_failure", confidence,
        f"{listed(nodes)} has no usable GPU ({quoted(found[0])})" + (f"; its equals {listed(well)} do" if well else ""),
        found, suspects=nodes, ranks=ranks_of(found), onset=onset(found),
        charges=tuple(Charge(n, tuple(e for e in found if e.node == n), drain=drain) for n in nodes),
    )  # fmt: skip


def _ordinal(view: View) -> Opinion | None:
    found = view.of("cuda.no_device")
    return None if not found else Opinion(
        "config", MEDIUM, f"a process asked for a GPU that it was not given ({quoted(found[0])})", found,
        ranks=ranks_of(found), requeue=False, budget="user", onset=onset(found),
        stop="more ranks than GPUs on a node: ask for as many GPUs as there are ranks",
    )  # fmt: skip


def command(view: View) -> Opinion | None:
    """The job's own command is not there or cannot be run: no other start finds it."""
    found = view.of("slurm.command_failed")
    return None if not found else Opinion(
        "config", HIGH, f"the job's command cannot be run ({quoted(found[0])})", found, requeue=False, budget="user",
        onset=onset(found), stop="the job's command cannot be run: see its path and its rights",
    )  # fmt: skip


def port(view: View) -> Opinion | None:
    found = view.of("port.in_use")
    if not found:
        return None
    number = next((f" {e.attrs['port']}" for e in found if "port" in e.attrs), "")
    return Opinion(
        "config", HIGH, f"port{number} was taken when the ranks wanted to meet: nobody's node is at fault", found,
        requeue=view.case.same_before < 3, budget="none", onset=onset(found),
        stop="the port was taken at every start: who holds it?" if view.case.same_before >= 3 else "",
        notes=("choose a new port for the next attempt: the attempt's number belongs into its formula",),
        follow_up=("see whether a process of the attempt before still holds the port",),
    )  # fmt: skip


def limits(view: View) -> Opinion | None:
    """Shared memory or file handles of the container or the job."""
    bus = tuple(e for e in view.of("loader.killed") if e.attrs.get("signal") == 7)
    found = (*view.of("shm.exhausted", "limit.open_files", "nccl.invalid_usage"), *bus)
    if not found:
        return None
    again = view.case.same_before > 0
    files = found[0].code == "limit.open_files"
    usage = found[0].code == "nccl.invalid_usage"
    what = "too many files were open" if files else "NCCL was called wrongly" if usage else "shared memory ran out"
    return Opinion(
        "config", HIGH, f"{what} ({quoted(found[0])}): a limit of the job, not hardware", found, ranks=ranks_of(found),
        requeue=not again, limit=1, budget="user", onset=onset(found),
        stop=f"{what} again: raise the limit" if again else "",
    )  # fmt: skip


def slow_start(view: View) -> Opinion | None:
    """Others waited while one rank was busy with work that shows how far it is."""
    late = view.of("nccl.watchdog_timeout", "gloo.timeout", "store.timeout")
    ranks = set(ranks_of(late))
    busy = tuple(
        e for e in view.of("progress.bar")
        if (e.rank is None or e.rank not in ranks) and _unfinished(e)
    )  # fmt: skip
    if not late or not busy or not view.never_trained:
        return None
    again = view.case.same_before > 0
    who = whom(ranks_of(busy), ())
    bar = busy[-1]
    return Opinion(
        "config", MEDIUM, f"{who} was still busy ({quoted(bar, 60)}, {bar.attrs.get('percent', '?')} %) when the "
        f"others gave up waiting ({quoted(late[0], 80) if late[0].attrs.get('text') else 'time-out'}); no step yet",
        (*busy, *late), requeue=not again, limit=None if again else 1, budget="user", onset=onset((*busy, *late)),
        stop=f"{who} was busy for longer than the others may wait, {view.case.same_before + 1} times now: raise the "
        "time-out, or prepare the data before the job" if again else "",
        notes=(f"{who} was busy",),
    )  # fmt: skip


def _unfinished(item: Evidence) -> bool:
    percent = item.attrs.get("percent")
    return not isinstance(percent, int | float) or percent < 100


def rendezvous(view: View) -> Opinion | None:
    found = view.of("rendezvous.failed", "store.timeout")
    return None if not found else Opinion(
        "unknown", LOW, f"the ranks did not find each other ({quoted(found[0])}), and no line says who did not come",
        found, requeue=view.case.same_before < 2, limit=2, onset=onset(found),
        stop="the ranks did not find each other three times" if view.case.same_before >= 2 else "",
    )  # fmt: skip
