"""NCCL's own lines, 2.14 to 2.30: completions, queue pairs, sockets, closed peers, and the names of its errors.

Fields are looked for one by one, so that a line cut short still gives what it holds.
"""

import re

from worker_hooks.signs.cuda import cuda_reason
from worker_hooks.signs.found import Found, attributes, first, pattern, short, whole
from worker_hooks.signs.system_texts import errno_of

# `gn07:4120:4388 [3]`: host, process, thread, CUDA device.
_ORIGIN = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,252}):\d+:\d+ \[(?P<local_rank>\d+)\]")
_PEER = re.compile(
    r"(?:from peer|peer|recv from|send to|[Cc]onnect to|Connect to|socketPollConnect to) (?!with\b)(?P<peer>[^\s<>,]+)"
)
_COMPLETION = {
    "status": re.compile(r"(?:status|error)[= ](?:\w+\()?(?P<value>\d+)"),
    "opcode": re.compile(r"opcode[= ](?:\w+\()?(?P<value>\d+)"),
    "vendor_error": re.compile(r"vendor[ _]err[= ](?P<value>\d+)"),
    "local_gid": re.compile(r"localGid ?(?P<value>[0-9a-fA-F:.]{2,45})"),
    "remote_gid": re.compile(r"remoteGids? ?(?P<value>[0-9a-fA-F:.]{2,45})"),
    "device": re.compile(r"\bhca (?P<value>[\w:.-]+)"),
}
_QUEUE_PAIR = {
    "errno": re.compile(r"failed with (?:error )?(?P<value>\d+)|errno (?P<other>\d+)"),
    "device": re.compile(r"on dev (?P<value>[\w.-]+(?::\d+)?)"),
    "local_gid": re.compile(r"local GID (?P<value>[0-9a-fA-F:.]{2,45})(?=,|\s|$)"),
    "remote_gid": re.compile(r"remote GID (?P<value>[0-9a-fA-F:.]{2,45})(?=,|\s|$)"),
}
_ASYNC = re.compile(
    r"NET/IB ?: (?:(?P<device>[\w.-]+(?::\d+)?) )?(?:Got (?:non-fatal )?async (?:error "
    r")?event ?: ?|async fatal event(?: on [^:]*?\)(?: \w+=\w+)*)?: ?)(?P<event>.+)"
)
_SOCKET = re.compile(
    r"(?:Call to (?:recv from|send to|connect|poll|accept)|[Cc]onnect to|socketPollConnect to|"
    r"socketPollConnect|[Aa]ccept|Socket creation)\b.{0,200}?"
    r"(?:failed ?(?::|with error)|returned \d+\s?\(|failed )\s?(?P<text>[^()]*)"
)
_CLOSED = re.compile(r"[Cc]onnection closed by remote peer(?: (?P<peer>[^\s<>,]+))?")
_CUDA = re.compile(r"(?:Cuda|CUDA) failure(?: (?P<number>\d{1,4}))?(?: '(?P<text>[^']*)'?)?")

_ERRORS = (
    pattern(
        "nccl.remote_error", "remote process exited", r"(?P<text>remote process exited or there was a network error)"
    ),
    pattern("nccl.remote_error", "RemoteError", r"(?P<text>nccl ?RemoteError.*)"),
    pattern("nccl.cuda_failure", "nhandled", r"(?P<text>nccl ?UnhandledCudaError|unhandled cuda error)"),
    pattern("nccl.system_error", "ystem", r"(?P<text>ncclSystemError.*|unhandled system error)"),
    pattern("nccl.internal_error", "nternal", r"(?P<text>ncclInternalError.*|NCCL error.{0,300}?\binternal error)"),
    pattern(
        "nccl.invalid_usage",
        "nvalid",
        r"(?P<text>ncclInvalid(?:Usage|Argument).*|NCCL error.{0,300}?\binvalid (?:usage|"
        r"argument))",
    ),
    pattern("nccl.invalid_usage", "Duplicate GPU", r"(?P<text>Duplicate GPU detected.*)"),
    pattern("nccl.system_error", "Call to ibv_", r"(?P<text>Call to ibv_\w+ failed.*)"),
)
_MISMATCH = re.compile(
    r"NET/IB ?: .{0,100}?(?P<size>collective mismatch error.*)|(?P<calls>Mismatched collective detected.*)|"
    r"NET/Socket ?: .{0,120}?(?P<cut>message truncated.*)|(?P<truncated>Message truncated ?: received.*)"
)


def origin(raw: str) -> tuple[str | None, int | None]:
    """Host and device in front of NCCL's lines, wherever in the line."""
    match = _ORIGIN.search(raw)
    return (match["host"], int(match["local_rank"])) if match else (None, None)


def nccl_reason(text: str) -> list[Found]:
    """What NCCL says in `text`, the more specific first."""
    if "NCCL INFO" in text:
        return []  # told again as a warning where it is an error
    found = _network(text)
    if found is None and (cuda := _CUDA.search(text)) and "failure" in text:
        return _cuda_failure(cuda, text)
    found = found or _mismatch(text) or first(_ERRORS, text)
    if found is None:
        return []
    host, device = origin(text)
    attrs = dict(found.attrs)
    if host is not None and device is not None:
        attrs |= {"host": host, "local_rank": device}
    return [Found(found.code, attrs, None, host)]


def _network(text: str) -> Found | None:
    if "Got completion" in text:
        return Found("nccl.ib_completion", _peer(text) | _fields(_COMPLETION, text))
    if "ibv_modify_qp" in text:
        return Found("nccl.ib_qp_timeout", _queue_pair(text))
    if "async" in text and (event := _ASYNC.search(text)):
        return Found("nccl.ib_async_event", attributes(event.groupdict()))
    if "losed by remote peer" in text and (closed := _CLOSED.search(text)):
        return Found("nccl.peer_closed", {"peer": address(closed["peer"])} if closed["peer"] else {})
    if _speaks_of_sockets(text) and (failed := _SOCKET.search(text)):
        number = errno_of(text[failed.start() :])
        attrs = _peer(text) | {"text": short(failed["text"])}
        return Found("nccl.socket_error", attrs if number is None else attrs | {"errno": number})
    return None


def _speaks_of_sockets(text: str) -> bool:
    return any(word in text for word in ("NCCL WARN", "Net : ", "socketStartConnect", "socketProgress", "socketPoll"))


def _queue_pair(text: str) -> dict[str, str | int | float | bool]:
    attrs = _fields(_QUEUE_PAIR, text)
    if "errno" not in attrs and (number := errno_of(text)) is not None:
        attrs["errno"] = number
    return attrs


def _fields(forms: dict[str, re.Pattern[str]], text: str) -> dict[str, str | int | float | bool]:
    matches = {name: form.search(text) for name, form in forms.items()}
    return attributes({name: next(filter(None, match.groups()), None) for name, match in matches.items() if match})


def _peer(text: str) -> dict[str, str | int | float | bool]:
    match = _PEER.search(text)
    return {"peer": address(match["peer"])} if match else {}


def address(text: str) -> str:
    """An address or host name without brackets, scope and the mark of a port: `[fe80::1%ib0]` is `fe80::1`."""
    text = text.split("<", 1)[0].strip()
    if text.startswith("["):
        text = text[1:].split("]", 1)[0]
    return text.split("%", 1)[0].rstrip(".,;")


def _cuda_failure(match: re.Match[str], text: str) -> list[Found]:
    """NCCL's failure, and before it what CUDA itself said."""
    host, device = origin(text)
    attrs: dict[str, str | int | float | bool] = {}
    if match["number"] and (number := whole(match["number"])) is not None:
        attrs["number"] = number
    if match["text"]:
        attrs["text"] = match["text"]
    if host is not None and device is not None:
        attrs |= {"host": host, "local_rank": device}
    said = cuda_reason(text)
    inner = [Found(said.code, said.attrs, None, host)] if said else []
    return [*inner, Found("nccl.cuda_failure", attrs, None, host)]


def _mismatch(text: str) -> Found | None:
    match = _MISMATCH.search(text) if "ismatch" in text or "truncated" in text else None
    if match is None:
        return None
    kind = "calls" if match["calls"] else "size"
    return Found("collective.mismatch", {"kind": kind, "text": short(next(filter(None, match.groups())))} | _peer(text))
