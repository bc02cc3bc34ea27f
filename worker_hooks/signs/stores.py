"""The key-value store and the rendezvous that a distributed job starts with."""

import re

from worker_hooks.signs.found import Found, first, pattern

_RAISED = r"(?:RuntimeError|DistNetworkError|DistStoreError|DistBackendError|DistError|what\(\)):\s+"
_PATTERNS = (
    pattern(
        "store.timeout",
        "store based barrier",
        r"(?P<text>Timed out initializing process group in store based barrier on rank:? "
        r"(?P<rank>\d{1,7}).*)",
    ),
    pattern("store.timeout", "waiting for clients", r"(?P<text>Timed out after .{0,40}waiting for clients.*)"),
    pattern(
        "store.timeout",
        "wait timeout after",
        r"(?:\[(?P<rank>\d{1,7})\] is setting up NCCL.{0,300}?)?(?P<text>wait timeout after \d+ "
        r"?ms.*)",
    ),
    pattern(
        "store.timeout",
        "is setting up NCCL",
        r"\[(?P<rank>\d{1,7})\] is setting up NCCL.{0,300}?got error: (?P<text>(?:Socket Timeout|"
        r"Timeout|Connection timed out).*)",
    ),
    pattern(
        "store.lost", "is setting up NCCL", r"\[(?P<rank>\d{1,7})\] is setting up NCCL.{0,300}?got error: (?P<text>.*)"
    ),
    pattern(
        "rendezvous.failed",
        "endezvous",
        r"(?P<text>Rendezvous(?:Timeout|Connection|Closed|State|Graceful\w*)?(?:Error|Exit)?: ?.*|"
        r"The rendezvous .{0,80}(?:failed|timed out|closed).*)",
    ),
    pattern("rendezvous.failed", "C10d store has failed", r"(?P<text>The connection to the C10d store has failed.*)"),
    pattern(
        "rendezvous.failed", "lient socket has", r"Error:.{0,40}?(?P<text>The client socket has (?:timed out|failed).*)"
    ),
    pattern(
        "store.lost",
        "Connection was likely closed",
        r"(?P<text>(?:failed to recv.{0,40})?Connection was likely closed.*)",
    ),
    pattern("store.lost", "failed to recv", r"(?P<text>failed to recv, got \d+ bytes.*)"),
    pattern("store.lost", "on SocketImpl", r"(?P<text>(?:send|recv)\w* failed on SocketImpl.*)"),
    pattern("store.lost", "TCPStore", r"(?P<text>TCPStore server has shut down too early.*)"),
    pattern("store.lost", "Connection reset by peer", r"^" + _RAISED + r"(?P<text>Connection reset by peer)\.?$"),
    pattern("store.lost", "Broken pipe", r"^" + _RAISED + r"(?P<text>Broken pipe)\.?$"),
    pattern("store.lost", "Connection refused", r"^" + _RAISED + r"(?P<text>Connection refused)\.?$"),
    pattern("store.lost", "Connection closed by peer", r"(?P<text>TCPStore.{0,200}Connection closed by peer.*)"),
    pattern("store.timeout", "Timeout", r"^" + _RAISED + r"(?P<text>(?:Socket )?Timeout)\.?$"),
)
_STARTS = re.compile(r"store|Store|endezvous|NCCL|socket|Error|Connection|what\(\)|timeout")


def store_reason(text: str) -> Found | None:
    return first(_PATTERNS, text) if _STARTS.search(text) else None
