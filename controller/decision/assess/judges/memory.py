"""Memory that ran out: the GPU's, the job's own limit on the host, the host's, and deaths that look like it."""

from controller.decision.assess.deaths import KILLED, Death, deaths, killed_by, of_past
from controller.decision.assess.opinion import Opinion
from controller.decision.assess.view import View, onset
from controller.decision.assess.words import listed, nodes_of, quoted, ranks_of, whom
from controller.decision.assessment import HIGH, LOW, MEDIUM
from controller.decision.evidence import Evidence


def host_memory(view: View) -> Opinion | None:
    """The kernel, or Slurm in its place, killed for want of memory."""
    kills = tuple(e for e in view.of("oom.kill") if _ours(view, e))
    slurm = (*view.of("slurm.oom"), *(e for e in view.of("slurm.job_state") if e.attrs.get("state") == "OUT_OF_MEMORY"))
    texts = view.of("host.out_of_memory")
    loaders = tuple(e for e in view.of("loader.killed") if e.attrs.get("signal") == KILLED)
    if not (kills or slurm or texts):
        return _loader(view, loaders)
    proof = (*slurm, *kills, *texts, *loaders)
    whole = [e for e in kills if e.attrs.get("constraint") == "none"]
    if whole and not slurm:
        where = nodes_of(whole)
        return Opinion(
            "host_oom", HIGH, f"the memory of {listed(where) or 'a node'} ran out as a whole, and its kernel killed "
            f"{_victims(whole)}; the job's own limit was not what ended it", proof, suspects=where,
            ranks=ranks_of(whole), requeue=not _again(view), limit=1, budget="user", onset=onset(proof),
            stop=_stop(view), follow_up=tuple(f"see what else used the memory of {n}" for n in where),
        )  # fmt: skip
    said = "Slurm reports processes killed by the memory limit of the job" if slurm else (
        f"the kernel killed {_victims(list(kills))} at the memory limit of the job" if kills else quoted(texts[0])
    )  # fmt: skip
    return Opinion(
        "host_oom", HIGH if slurm or kills else MEDIUM, f"{said}: the job's own limit, not the node", proof,
        ranks=ranks_of((*kills, *texts)), requeue=not _again(view), limit=1, budget="user", onset=onset(proof),
        stop=_stop(view),
    )  # fmt: skip


def _again(view: View) -> bool:
    return view.case.same_before > 0


def _stop(view: View) -> str:
    return "the memory ran out at the same place as before: ask for more, or use less" if _again(view) else ""


def _victims(kills: list[Evidence]) -> str:
    names = sorted({f"{e.attrs.get('process', 'a process')} (pid {e.attrs.get('pid', '?')})" for e in kills})
    return listed(names, 3)


def _ours(view: View, item: Evidence) -> bool:
    """A kill in the memory of another job is not about this one."""
    job, slurm = item.attrs.get("slurm_job"), view.case.slurm
    return not (
        job and slurm is not None and slurm.job_id and str(job) != slurm.job_id.split("_", 1)[0].split("+", 1)[0]
    )


def _loader(view: View, loaders: tuple[Evidence, ...]) -> Opinion | None:
    if not loaders:
        return None
    return Opinion(
        "host_oom", LOW, "a worker of the data loader was killed with signal 9 and no line says by whom: most often "
        "memory", loaders, ranks=ranks_of(loaders), requeue=not _again(view), limit=1, budget="user",
        onset=onset(loaders), stop=_stop(view),
    )  # fmt: skip


def gpu_memory(view: View) -> Opinion | None:
    found = view.of("cuda.out_of_memory")
    if not found:
        return None
    first = [e for e in found if e.at is None or e.at == found[0].at]
    ranks = ranks_of(first)
    return Opinion(
        "gpu_oom", HIGH, f"{whom(ranks, nodes_of(first))} asked for more GPU memory than there was: {quoted(found[0])}",
        found, ranks=ranks, requeue=False, budget="user", onset=onset(found),
        stop="the GPU's memory does not suffice: a smaller batch, or fewer processes on the GPU",
        follow_up=("start srun with --kill-on-bad-exit=1, so that one rank's death ends the others at once",),
    )  # fmt: skip


def killed(view: View) -> Opinion | None:
    """Signal 9 that nobody explains: most often memory, where the kernel log does not say otherwise."""
    found = killed_by(deaths(view), KILLED)
    if not found:
        return None
    proof = tuple(d.item for d in found)
    where = nodes_of(proof)
    ranks = ranks_of(proof) or ranks_of(d.item for items in view.past for d in killed_by(of_past(items), KILLED))
    clean = {view.names.canonical(n) for n in view.case.read_clean}
    if where and set(where) <= clean and not view.of("oom.kill"):
        return Opinion(
            "unknown", LOW, f"{whom(ranks, where)} was killed with signal 9; the kernel log has no want of memory, so "
            "somebody else sent it", proof, ranks=ranks, budget="infra", requeue=not _again(view), onset=onset(proof),
            stop="killed twice at the same step, and nobody knows by whom" if _again(view) else "",
        )  # fmt: skip
    again = _again(view)
    place = f"at step {view.case.last_step}" if view.case.last_step is not None else "at the same place"
    return Opinion(
        "host_oom", MEDIUM if again else LOW,
        "killed with signal 9 and no word of Slurm's: most often memory" + (
            f"; the {_nth(view)} attempt in a row that ended {place}, so it will again" if again else
            "; the kernel log, which would say so, was not read"),
        proof, ranks=() if again else ranks, requeue=not again, limit=None if again else 1, budget="user",
        onset=onset(proof),
        stop=f"it ended {place} again: more memory is needed, nothing is gained by a requeue" if again else "",
    )  # fmt: skip


def _nth(view: View) -> str:
    count = view.case.same_before + 1
    return {2: "second", 3: "third"}.get(count, f"{count}th")


def earliest(found: list[Death]) -> list[Death]:
    """Those that ended first, as far as times are known."""
    known = [d.item.at for d in found if d.item.at is not None]
    return [d for d in found if d.item.at is None or d.item.at <= min(known) + 1.0] if known else found
