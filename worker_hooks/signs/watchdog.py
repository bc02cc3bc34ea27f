"""PyTorch's NCCL watchdog and heartbeat monitor, torch 1.13 to 2.13: time-outs, sequence numbers, why it ended."""

import re

from worker_hooks.signs.found import Found, attributes, short, whole

# `[Rank 3]`, `[PG 1 Rank 5]`, `[PG 0 (default_pg) Rank 2]`, `[PG ID 0 PG GUID 0(default_pg) Rank 6]`.
_WHO = re.compile(
    r"\[(?:PG (?:ID (?P<id>\d+) PG GUID (?P<guid>[^\s()\]]*)|(?P<pg>[^\s()\]]+)) "
    r"?(?:\((?P<name>[^()]*)\))? )?Rank (?P<rank>\d{1,7})\]"
)
_CAUGHT = re.compile(r"(?:Watchdog )?[Cc]aught collective operation timeout|WorkNCCL\(.*ran for \d+ milli")
_WORK = {
    "sequence": re.compile(r"SeqNum=(\d+)"),
    "op": re.compile(r"OpType=(\w+)"),
    "numel_in": re.compile(r"NumelIn=(\d+)"),
    "numel_out": re.compile(r"NumelOut=(\d+)"),
    "timeout_ms": re.compile(r"Timeout\(ms\)=(\d+)"),
    "ran_ms": re.compile(r"ran for (\d+) ?m(?:illi)?s"),
}
_SHAPE = re.compile(r"TensorShape=\[([\d, ]*)\]")
_WORK_AT = re.compile(r"(?:at work|at NCCL work|Timeout at NCCL work|at work sequence id):? ?(-?\d+)")
_ENQUEUED = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: ?(-?\d+)")
_COMPLETED = re.compile(r"[Ll]ast completed (?:NCCL )?work: ?(-?\d+)")
_STATUS = re.compile(
    r"detected by watchdog at work|Timeout at NCCL work|[Ll]ast enqueued (?:NCCL )?work|failure detected by watchdog"
)
_STUCK = re.compile(
    r"watchdog got stuck for (?P<seconds>\d+) seconds|Heartbeat monitor timed out|due to "
    r"ProcessGroupNCCL watchdog hang|"
    r"detected no heartbeat of its watchdog"
)
_ENDED = re.compile(
    r"watchdog thread terminated with exception:? ?(?P<text>.*)|NCCL communicator was aborted "
    r"on rank (?P<rank>\d+)\.?(?: Original reason for failure was:? ?(?P<why>.*))?"
)
_OF_ANOTHER = "Found key in store"  # tells again what another rank has said


def watchdog_found(text: str) -> Found | None:
    """What the watchdog says. `nccl.watchdog_ended` has the reason in `text`: it is a failure of its own."""
    if not any(
        word in text
        for word in ("atchdog", "NCCL work", "WorkNCCL", "enqueued", "communicator was aborted", "eartbeat")
    ):
        return None
    if _OF_ANOTHER in text:
        return None
    return _ended(text) or _timeout(text) or _stuck(text) or _status(text)


def group_of(text: str) -> dict[str, str | int | float | bool]:
    """The process group that the line names: its unique name where it is printed, because the number counts anew in
    each process."""
    who = _WHO.search(text)
    if who is None or not (who["guid"] or who["pg"]):
        return {}
    group: dict[str, str | int | float | bool] = {"group": who["guid"] or who["pg"]}
    return group | {"group_name": who["name"]} if who["name"] else group


def rank_of(text: str) -> int | None:
    who = _WHO.search(text)
    return int(who["rank"]) if who else None


def _ended(text: str) -> Found | None:
    match = _ENDED.search(text)
    if match is None:
        return None
    rank = int(match["rank"]) if match["rank"] else rank_of(text[: match.start()])
    reason = match["text"] or match["why"] or ""
    return Found("nccl.watchdog_ended", {"text": short(reason)} | group_of(text[: match.start()] or text), rank)


def _timeout(text: str) -> Found | None:
    if not _CAUGHT.search(text):
        return None
    matches = {name: form.search(text) for name, form in _WORK.items()}
    attrs = attributes({name: match[1] for name, match in matches.items() if match})
    if "numel_in" not in attrs and (shape := _SHAPE.search(text)):
        attrs["numel_in"] = _elements(shape[1])
    return Found("nccl.watchdog_timeout", attrs | group_of(text), rank_of(text))


def _elements(shape: str) -> int:
    """Torch up to 1.13 printed the shape."""
    product = 1
    for size in shape.split(","):
        product *= whole(size) or 1
    return product


def _stuck(text: str) -> Found | None:
    match = _STUCK.search(text)
    if match is None:
        return None
    return Found("nccl.watchdog_stuck", attributes(match.groupdict()) | group_of(text), rank_of(text))


def _status(text: str) -> Found | None:
    if not _STATUS.search(text):
        return None
    matches = {"work": _WORK_AT.search(text), "enqueued": _ENQUEUED.search(text), "completed": _COMPLETED.search(text)}
    attrs = attributes({name: match[1] for name, match in matches.items() if match})
    return Found("nccl.watchdog_status", attrs | group_of(text), rank_of(text)) if attrs else None
