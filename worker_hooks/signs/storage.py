"""Errors of files, memory and ports in a job's own words: error numbers with a path, damaged files, no room."""

import errno
import re

from worker_hooks.signs.found import Found, first, pattern, short, whole
from worker_hooks.signs.system_texts import ERRNOS

_OS_ERROR = re.compile(
    r"\[Errno (?P<number>\d{1,3})\](?P<text>[^:'\"]*)(?::? ?(?P<quote>['\"])(?P<path>.{1,200}?)(?P=quote))?"
)
_RUST = re.compile(r"\(os error (?P<number>\d{1,3})\)")
_PATH = re.compile(r"['\"<](?P<path>(?:/|\.{1,2}/|[\w.-]+/)[^'\">\n]{0,200})['\">]")
_BY_NUMBER = {
    5: "storage.io_error",
    28: "storage.no_space",
    30: "storage.readonly",
    116: "storage.stale",
    121: "storage.io_error",
    122: "storage.quota",
    12: "host.out_of_memory",
    23: "limit.open_files",
    24: "limit.open_files",
    98: "port.in_use",
    107: "storage.unreachable",
    108: "storage.unreachable",
    112: "storage.unreachable",
}
# A time-out is the storage's only where a path stands beside it; a socket's has none.
_WITH_PATH = {110: "storage.unreachable", 103: "storage.unreachable"}
_WORDS = tuple(
    name
    for name in ERRNOS
    if ERRNOS[name] in _BY_NUMBER and ERRNOS[name] not in (errno.ENOMEM, errno.EADDRINUSE, errno.EHOSTDOWN)
)

_SHM = (
    pattern(
        "shm.exhausted",
        "shared memory",
        r"(?P<text>(?:out of|insufficient|unable to (?:open|allocate|create)|Error while "
        r"(?:creating|attaching to)) shared memory.*)",
    ),
    pattern(
        "shm.exhausted", "/dev/shm", r"(?P<text>.{0,80}/dev/shm.{0,200}(?:No space left|Cannot allocate|failed).*)"
    ),
    pattern(
        "shm.exhausted", "/dev/shm", r"(?P<text>(?:No space left on device|Cannot allocate memory).{0,40}/dev/shm.*)"
    ),
    pattern("shm.exhausted", "torch_", r"(?P<text>unable to (?:write to file|mmap|open|resize).{0,80}</?torch_.*)"),
)
_PATTERNS = (
    pattern("port.in_use", "EADDRINUSE", r"(?:port: (?P<port>\d{1,5}).{0,200})?EADDRINUSE"),
    pattern(
        "port.in_use",
        "ddress already in use",
        r"(?:(?:port:? |\(['\"][\w.:]*['\"], |:)(?P<port>\d{2,5})\b.{0,120})?[Aa]ddress already "
        r"in use",
    ),
    pattern("host.out_of_memory", "bad_alloc", r"(?P<text>(?:std::)?bad_alloc)"),
    pattern("host.out_of_memory", "DefaultCPUAllocator", r"(?P<text>DefaultCPUAllocator: .*)"),
    pattern("host.out_of_memory", "MemoryError", r"^(?:[\w.]+\.)?(?P<text>_?(?:Array)?MemoryError\b.*)"),
    pattern("host.out_of_memory", "annot allocate memory", r"(?P<text>[Cc]annot allocate memory)"),
    pattern("host.out_of_memory", "Unable to allocate", r"(?P<text>Unable to allocate [\d.]+ [KMGT]iB.*)"),
    pattern("checkpoint.unreadable", "PytorchStreamReader", r"(?P<text>PytorchStreamReader failed.*)"),
    pattern("storage.io_error", "PytorchStreamWriter", r"(?P<text>PytorchStreamWriter failed writing.*)"),
    pattern("storage.io_error", "inline_container", r"(?P<text>inline_container\.cc.{0,40}unexpected pos.*)"),
    pattern("checkpoint.unreadable", "CheckpointException", r"(?P<text>CheckpointException.*)"),
    pattern(
        "checkpoint.unreadable",
        "SafetensorError",
        r"(?P<text>SafetensorError: .*(?:header|deserializ|incomplete|Invalid|"
        r"MetadataIncomplete).*)",
    ),
    pattern("checkpoint.unreadable", "invalid load key", r"(?P<text>(?:\w*UnpicklingError: )?invalid load key.*)"),
    pattern(
        "checkpoint.unreadable", "unpickl", r"(?i)(?P<text>pickle data was truncated|unpickling stack underflow.*)"
    ),
    pattern(
        "checkpoint.unreadable",
        "heckpoint",
        r"(?P<text>[Cc]heckpoint.{0,120}(?:corrupt|is incomplete|digest|cannot be read|could not "
        r"be read|truncated).*)",
    ),
    pattern("data.corrupt", "BadZipFile", r"(?P<text>BadZipFile.*)"),
    pattern("data.corrupt", "UnidentifiedImageError", r"(?P<text>UnidentifiedImageError.*)"),
    pattern("data.corrupt", "image file is truncated", r"(?P<text>image file is truncated.*)"),
    pattern("data.corrupt", "decompressing", r"(?P<text>Error -?\d+ while decompressing.*)"),
    pattern("data.corrupt", "LZMAError", r"(?P<text>LZMAError.*)"),
    pattern("data.corrupt", "BadGzipFile", r"(?P<text>BadGzipFile.*)"),
    pattern("data.corrupt", "ZstdError", r"(?P<text>ZstdError.*)"),
    pattern("data.corrupt", "tarfile", r"tarfile\.(?P<text>ReadError.*)"),
    pattern(
        "data.corrupt",
        "Arrow",
        r"(?P<text>Arrow(?:Invalid|IOError): .*(?:magic|Parquet|footer|truncat|corrupt|"
        r"[Ee]xpected).*)",
    ),
    pattern(
        "data.corrupt", "corrupt", r"Error: (?P<text>.*\b(?:is|data|file|record|shard)\b.{0,60}\bcorrupt(?:ed)?\b.*)"
    ),
    pattern("storage.unreachable", "Max retries exceeded", r"(?P<text>HTTPS?ConnectionPool\(.*Max retries exceeded.*)"),
    pattern("storage.unreachable", "FSTimeoutError", r"(?P<text>FSTimeoutError.*)"),
    pattern("storage.unreachable", "EndpointConnectionError", r"(?P<text>EndpointConnectionError.*)"),
    pattern(
        "storage.unreachable",
        "TimeoutError",
        r"(?:botocore|urllib3|requests|aiohttp|google|azure)[\w.]*\.(?P<text>\w*TimeoutError.*)",
    ),
    pattern("storage.unreachable", "SlowDown", r"(?P<text>\(SlowDown\).*|SlowDown.*)"),
)


def storage_reason(text: str) -> Found | None:
    """What `text` says of files, memory or ports; the error number decides where there is one."""
    return first(_SHM, text) or _numbered(text) or first(_PATTERNS, text) or _worded(text)


def _numbered(text: str) -> Found | None:
    match = _OS_ERROR.search(text) or _RUST.search(text)
    number = whole(match["number"]) if match else None
    if match is None or number is None:
        return None
    path = match.groupdict().get("path") or _path(text)
    code = _BY_NUMBER.get(number) or (_WITH_PATH.get(number) if path else None)
    return _found(code, number, path, text) if code else None


def _worded(text: str) -> Found | None:
    """`Input/output error` without a number."""
    word = next((word for word in _WORDS if word in text), None)
    if word is None:
        return None
    number = int(ERRNOS[word])
    return _found(_BY_NUMBER[number], number, _path(text), text)


def _found(code: str, number: int, path: str | None, text: str) -> Found:
    attrs: dict[str, str | int | float | bool] = {"errno": number}
    if code.startswith(("host.", "limit.", "port.")):
        attrs = {} if code == "port.in_use" else {"text": short(text)}
    elif path:
        attrs["path"] = path
    return Found(code, attrs)


def _path(text: str) -> str | None:
    match = _PATH.search(text)
    return match["path"] if match else None
