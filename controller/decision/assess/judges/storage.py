"""Data and storage. On one node alone: keep the job away from it. On several: the storage, and never a node."""

from controller.decision.assess import law
from controller.decision.assess.opinion import Charge, Opinion
from controller.decision.assess.roles import STRONG, weight
from controller.decision.assess.standing import ELSEWHERE, STORAGE, standings
from controller.decision.assess.view import View, onset
from controller.decision.assess.words import listed, nodes_of, quoted, ranks_of, whom
from controller.decision.assessment import HIGH, LOW, MEDIUM

SHARED_DELAY_S = 300.0
FILES = (
    *("storage.stale", "storage.io_error", "storage.no_space", "storage.readonly", "storage.unreachable"),
    "storage.not_responding",
)
DISK = ("disk.error", "disk.readonly")


def local_disk(view: View) -> Opinion | None:
    """The host's own disk failed, and the job felt it on that node and nowhere else."""
    disks = tuple(e for e in view.of(*DISK) if e.node and weight(view, e) in ("hard", STRONG))
    nodes = nodes_of(disks)
    felt = tuple(e for e in view.of(*FILES) if e.node)
    if len(nodes) != 1 or not felt or set(nodes_of(felt)) != set(nodes):
        return None
    (node,) = nodes
    return Opinion(
        "node_failure", HIGH, f"{node}: its kernel saw a disk fail ({quoted(disks[0])}) and the job could not use its "
        f"files there ({quoted(felt[0])})", (*disks, *felt), suspects=nodes, ranks=ranks_of(felt),
        charges=(Charge(node, (*disks, *felt), drain=True),), onset=onset((*disks, *felt)),
    )  # fmt: skip


def quota(view: View) -> Opinion | None:
    found = view.of("storage.quota")
    return None if not found else Opinion(
        "data_or_storage", HIGH, f"the quota is used up ({quoted(found[0])})", found, ranks=ranks_of(found),
        requeue=False, budget="user", onset=onset(found),
        stop="the quota is used up: nothing can be saved until room is made",
    )  # fmt: skip


def files(view: View) -> Opinion | None:
    found = view.of(*FILES)
    if not found:
        return None
    nodes = nodes_of(found)
    servers = sorted({str(e.attrs["server"]) for e in found if "server" in e.attrs})
    unplaced = [e for e in found if not e.node]
    known = set(view.nodes) | view.healthy
    if len(nodes) == 1 and not unplaced and known - set(nodes):
        return Opinion(
            "data_or_storage", MEDIUM, f"{nodes[0]} alone could not use its files ({quoted(found[0])}); the job's "
            "other nodes could", found, suspects=nodes, ranks=ranks_of(found), charges=(Charge(nodes[0], found),),
            onset=onset(found),
        )  # fmt: skip
    where = f"{len(nodes)} nodes ({listed(nodes)})" if len(nodes) > 1 else listed(nodes) or "a node"
    shared = len(nodes) > 1 or bool(servers)
    return Opinion(
        "data_or_storage", HIGH if shared else LOW,
        f"files could not be used on {where} ({quoted(found[0])})"
        + (f", server {listed(servers)}" if servers else "")
        + (": what they share is the storage, so no node is blamed" if shared else ""),
        found, ranks=() if shared else ranks_of(found), delay_s=SHARED_DELAY_S, onset=onset(found),
        follow_up=("check the storage before the job goes on",),
    )  # fmt: skip


def data(view: View) -> Opinion | None:
    """A file that cannot be decoded, or a checkpoint that cannot be read."""
    found = view.of("data.corrupt", "checkpoint.unreadable")
    if not found:
        return None
    lead = found[0]
    row = view.row(lead)
    again = view.case.same_before > 0
    verdict = row.verdict if row is not None else "data_or_storage"
    return Opinion(
        verdict, MEDIUM, f"{view.said(lead)}: {quoted(lead)}", found, ranks=ranks_of(found), requeue=not again, limit=1,
        budget="infra" if verdict == "resume_fault" else "user", onset=onset(found),
        stop="the same file cannot be read again" if again else "",
    )  # fmt: skip


def ranks_wait(view: View) -> Opinion | None:
    """Ranks that sleep in the kernel for a remote file system while the run stands still, and nobody who was looked at
    is anywhere else. What they share is the storage: no node is blamed, however few they are."""
    found, stalled = standings(view), bool(view.of("progress.stalled"))
    odd = [s for s in found if s.place == STORAGE]
    if not odd or any(s.place in ELSEWHERE for s in found):
        return None
    proof, ranks = tuple(s.item for s in odd), tuple(s.rank for s in odd)
    return Opinion(
        "data_or_storage", MEDIUM if stalled else LOW, f"{whom(ranks, nodes_of(proof))} slept in the kernel for a "
        f"remote file system ({quoted(odd[0].item)})", proof, ranks=ranks if len(odd) < len(found) else (),
        delay_s=SHARED_DELAY_S, onset=onset(proof), follow_up=("check the storage before the job goes on",),
    )  # fmt: skip


def host_waits(view: View) -> Opinion | None:
    """Hung tasks on several nodes: what they wait for is mostly storage."""
    found = tuple(e for e in view.of("kernel.hung_task") if e.node)
    if not found or view.case.still_training:
        return None
    many = len(nodes_of(found)) > law.FEW_NODES
    return Opinion(
        "data_or_storage" if many else "unknown", LOW,
        f"processes waited in the kernel for minutes on {listed(nodes_of(found))}, mostly a sign of storage", found,
        delay_s=SHARED_DELAY_S, onset=onset(found),
    )  # fmt: skip
