"""Gloo's errors (the CPU backend of torch.distributed), and what its monitored barrier says of silent ranks."""

import re

from worker_hooks.signs.found import Found, whole
from worker_hooks.signs.nccl import address

_SPEAKS = re.compile(r"gloo|Gloo|monitoredBarrier|Connection closed by peer|Application timeout caused pair closure")
_PEER = r"(?:\[(?P<peer>[^\]\s]+)\](?::\d+)?|(?P<bare>[\w.-]+):\d+)"
_LOST = re.compile(
    r"(?:Read error|Write error|writev|readv|connect|recv error|send error) " + _PEER + r": (?P<why>[A-Z][\w ]+)"
)
_CLOSED = re.compile(r"Connection closed by peer(?: " + _PEER + ")?")
_CONNECT = re.compile(r"(?:SO_ERROR: (?P<why>[A-Z][\w ]+?), .{0,120}?)?remote=" + _PEER)
_MESH = re.compile(r"Gloo connectFullMesh failed|timed out connecting|connect timed out")
_WAITED = re.compile(
    r"[Tt]imed out waiting (?P<ms>\d+) ?ms|[Tt]imeout caused pair closure|[Oo]peration timed out|Timed out waiting"
)
_BARRIER = re.compile(
    r"Ranks? (?P<missing>[\d, ]+?) failed to pass monitoredBarrier(?: in (?P<ms>\d+) ?ms)?|"
    r"monitoredBarrier.{0,80}?(?:send|recv)(?:/recv)? from rank (?P<one>\d+)"
)
_REPORTER = re.compile(r"\[Rank (\d{1,7})\]")
_KINDS = (
    ("reset", ("reset by peer", "Broken pipe", "connection abort")),
    ("refused", ("refused",)),
    ("unreachable", ("No route", "unreachable", "Host is down", "timed out", "Network is down")),
)


def gloo_reason(text: str) -> Found | None:
    if not _SPEAKS.search(text):
        return None
    if barrier := _BARRIER.search(text):
        return _barrier(barrier, text)
    if lost := _LOST.search(text):
        return Found("gloo.peer_lost", {"kind": _kind(lost["why"])} | _peer(lost))
    if closed := _CLOSED.search(text):
        return Found("gloo.peer_lost", {"kind": "closed"} | _peer(closed))
    if waited := _WAITED.search(text):
        found = {"timeout_ms": ms} if (ms := whole(waited["ms"] or "")) is not None else {}
        return Found("gloo.timeout", found)
    if _MESH.search(text):
        remote = _CONNECT.search(text)
        return Found("gloo.peer_lost", {"kind": _kind(text)} | (_peer(remote) if remote else {}))
    return None


def _peer(match: re.Match[str]) -> dict[str, str | int | float | bool]:
    peer = match["peer"] or match["bare"]
    return {"peer": address(peer)} if peer else {}


def _kind(text: str) -> str:
    return next((kind for kind, words in _KINDS if any(word in text for word in words)), "closed")


def _barrier(match: re.Match[str], text: str) -> Found:
    """The ranks that did not come: the silent ones, not the one that complains."""
    ranks = re.findall(r"\d+", match["missing"] or match["one"])
    attrs: dict[str, str | int | float | bool] = {"missing": ",".join(ranks)}
    if (ms := whole(match["ms"] or "")) is not None:
        attrs["timeout_ms"] = ms
    reporter = _REPORTER.search(text)
    return Found("gloo.timeout", attrs, int(reporter[1]) if reporter else None)
