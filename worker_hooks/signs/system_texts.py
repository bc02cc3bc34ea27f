"""What the C library prints for signals and error numbers, the same in every program."""

import errno
import signal

SIGNALS: dict[str, int] = {
    "Hangup": signal.SIGHUP,
    "Interrupt": signal.SIGINT,
    "Quit": signal.SIGQUIT,
    "Illegal instruction": signal.SIGILL,
    "Trace/breakpoint trap": signal.SIGTRAP,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Killed": signal.SIGKILL,
    "User defined signal 1": signal.SIGUSR1,
    "Segmentation fault": signal.SIGSEGV,
    "User defined signal 2": signal.SIGUSR2,
    "Broken pipe": signal.SIGPIPE,
    "Alarm clock": signal.SIGALRM,
    "Terminated": signal.SIGTERM,
    "CPU time limit exceeded": signal.SIGXCPU,
    "Cputime limit exceeded": signal.SIGXCPU,
    "File size limit exceeded": signal.SIGXFSZ,
    "Bad system call": signal.SIGSYS,
}

ERRNOS: dict[str, int] = {
    "Connection reset by peer": errno.ECONNRESET,
    "Connection refused": errno.ECONNREFUSED,
    "Connection timed out": errno.ETIMEDOUT,
    "Connection aborted": errno.ECONNABORTED,
    "Software caused connection abort": errno.ECONNABORTED,
    "No route to host": errno.EHOSTUNREACH,
    "Host is down": errno.EHOSTDOWN,
    "Network is unreachable": errno.ENETUNREACH,
    "Network is down": errno.ENETDOWN,
    "Broken pipe": errno.EPIPE,
    "Address already in use": errno.EADDRINUSE,
    "Input/output error": errno.EIO,
    "Remote I/O error": errno.EREMOTEIO,
    "Stale file handle": errno.ESTALE,
    "Stale NFS file handle": errno.ESTALE,
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "Cannot allocate memory": errno.ENOMEM,
    "Too many open files": errno.EMFILE,
    "Too many open files in system": errno.ENFILE,
    "Invalid argument": errno.EINVAL,
    "No such device": errno.ENODEV,
    "Transport endpoint is not connected": errno.ENOTCONN,
    "Cannot send after transport endpoint shutdown": errno.ESHUTDOWN,
}


def signal_of(text: str) -> int | None:
    """The number of `Segmentation fault`, `SIGSEGV`, `11` or `Signals.SIGTERM`; None for anything else."""
    text = text.strip().removeprefix("Signals.")
    if text in SIGNALS:
        return int(SIGNALS[text])
    if text.isascii() and text.isdigit():
        return int(text) if 0 < int(text[:4]) < 65 else None
    number = getattr(signal, text, None) if text.startswith("SIG") and not text.startswith("SIG_") else None
    return int(number) if isinstance(number, signal.Signals) else None


def errno_of(text: str) -> int | None:
    """The number of an error text that stands in `text`; of several the longest."""
    known = [name for name in ERRNOS if name in text]
    return int(ERRNOS[max(known, key=len)]) if known else None
