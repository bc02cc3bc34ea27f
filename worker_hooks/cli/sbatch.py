"""`relume sbatch`: sbatch with an identity (docs/formats.md sections 1 to 3).

The identity file is written before sbatch runs, so that a job that starts at once finds it; the controller is told
after sbatch has answered, so that it never delays or prevents a submission. Everything heavy is imported there.
"""

import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from worker_hooks.agent.identity import Identity, IdentityError, UserConfig, load_identity, state_folder, user_config
from worker_hooks.cli.receipt import Receipt, read_receipt
from worker_hooks.cli.script_header import Header, HeaderError, read_header
from worker_hooks.cli.submission import Plan, Request, UsageError, is_array, make_plan, read_request, without_identity
from worker_hooks.protocol import exit_codes
from worker_hooks.protocol.identity import new_run_id, new_token

REGISTER_LIMIT_S = 2.0
NOT_FOUND = 127
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,7})|/dev/stdin", re.ASCII)


def main(argv: Sequence[str]) -> int:
    """sbatch's exit code; 2 (our usage errors) and 69 (`--relume-require` unmet) before anything is submitted."""
    environ = dict(os.environ)
    try:
        request = read_request(argv)
        if request.passes_through:
            return call_sbatch(request.line.argv, environ, None).code
        script, stdin = _read_script(request)
        header = read_header(script)
    except (UsageError, HeaderError) as error:
        print(f"relume: {error}", file=sys.stderr)
        return exit_codes.USAGE
    return _submit(request, header, script, stdin, environ)


def _submit(request: Request, header: Header, script: bytes, stdin: bytes | None, environ: dict[str, str]) -> int:
    config = user_config(environ)
    identity = _new_identity(request, header, script, environ, config)
    plan = make_plan(request, header, environ, _exports(identity), is_array(request, header, environ))
    identity.name = _name(plan, request)
    say = _Speaker(plan.quiet)
    if "dry-run" in plan.settings:
        print(shlex.join(["sbatch", *plan.argv]))
        return 0
    for note in plan.notes:
        say(note)
    if plan.tracked and not _write_identity(identity, plan, say):
        return exit_codes.UNAVAILABLE
    if "require" in plan.settings and not _required(identity, config, say):
        identity.path.unlink(missing_ok=True)
        return exit_codes.UNAVAILABLE
    receipt = call_sbatch(plan.argv, plan.environ, stdin, parsable=plan.parsable)
    if plan.tracked:
        _after(identity, receipt, config, say)
    return receipt.code


class _Speaker:
    """Our words: stderr only; under `--quiet` only errors, as with sbatch."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def __call__(self, text: str, error: bool = False) -> None:
        if error or not self._quiet:
            with suppress(OSError):
                print(f"relume: {text}", file=sys.stderr, flush=True)


# --- before -----------------------------------------------------------------------------------------------------


def _read_script(request: Request) -> tuple[bytes, bytes | None]:
    """(script, what sbatch must get as standard input). A script that cannot be read is sbatch's to complain about."""
    line = request.line
    if line.has("wrap"):
        return b"", None
    if line.script_at is None:
        script = sys.stdin.buffer.read()
        return script, script
    word = line.argv[line.script_at]
    path = find_script(word, os.environ.get("PATH", ""))
    try:
        script = path.read_bytes() if path else b""
    except OSError:
        return b"", None
    if found := _DESCRIPTOR.fullmatch(word):
        _put_back(int(found[1] or 0), script)
    return script, None


def _put_back(descriptor: int, script: bytes) -> None:
    """`sbatch <(make_script)`: a pipe can be read once, so sbatch finds a copy under the same number."""
    copy = os.memfd_create("script")
    with os.fdopen(copy, "wb") as file:
        file.write(script)
        file.flush()
        os.dup2(copy, descriptor)


def find_script(word: str, search: str) -> Path | None:
    """sbatch's own search: a path as it is, then the current folder, then PATH."""
    if word.startswith((".", "/")) or Path(word).is_file():
        return Path(word)
    found = shutil.which(word, mode=os.R_OK, path=search)
    return Path(found) if found else None


def _new_identity(
    request: Request, header: Header, script: bytes, environ: Mapping[str, str], config: UserConfig
) -> Identity:
    settings = {**header.relume, **request.own}
    run_id = new_run_id()
    script_at = request.line.script_at
    root = settings.get("checkpoint-root") or environ.get("RELUME_CHECKPOINT_ROOT")
    return Identity(
        run_id=run_id,
        token=new_token(),
        path=(state_folder(environ) / "identities" / f"{run_id}.json").absolute(),
        url=settings.get("url") or config.url,
        user=_user_name(),
        submitted_at=time.time(),
        argv=list(request.line.argv),
        script=request.line.argv[script_at] if script_at is not None else None,
        script_digest="sha256:" + sha256(script).hexdigest() if script else None,
        checkpoint_root=str(Path(root).absolute()) if root else None,
    )


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _exports(identity: Identity) -> dict[str, str]:
    """What the job must see: names and paths, never the token."""
    found = {"RELUME_RUN_ID": identity.run_id, "RELUME_IDENTITY": str(identity.path)}
    if identity.checkpoint_root:
        found["RELUME_CHECKPOINT_ROOT"] = identity.checkpoint_root
    return found


def _name(plan: Plan, request: Request) -> str:
    chosen = plan.settings.get("name") or plan.job_name
    if chosen:
        return chosen
    at = request.line.script_at
    return Path(request.line.argv[at]).name if at is not None else "sbatch"


def _write_identity(identity: Identity, plan: Plan, say: _Speaker) -> bool:
    """A state folder that cannot be written costs the tracking, not the submission, unless tracking is required."""
    try:
        identity.save()
    except OSError as error:
        required = "require" in plan.settings
        say(f"{identity.path}: {error.strerror}: the run can be tracked from Slurm's side only", error=required)
        plan.tracked = False
        plan.environ = without_identity(plan.environ)
    return plan.tracked or "require" not in plan.settings


def _required(identity: Identity, config: UserConfig, say: _Speaker) -> bool:
    problem = _register(identity, config)
    if problem is not None:
        say(f"nothing submitted, because --relume-require was given: {problem}", error=True)
    return problem is None


# --- sbatch -----------------------------------------------------------------------------------------------------


def call_sbatch(
    argv: Sequence[str], environ: Mapping[str, str], stdin: bytes | None, parsable: bool = False
) -> Receipt:
    """Run sbatch, pass its output on as it comes, and read the job id in it. No time limit: `--wait` may take days."""
    try:
        output, child_output = _output_for_child()
        process = subprocess.Popen(
            ["sbatch", *argv],
            env=dict(environ),
            stdin=subprocess.PIPE if stdin is not None else None,
            stdout=child_output,
            close_fds=False,  # what the caller handed down is sbatch's too; our own are closed on exec anyway
        )
    except OSError as error:
        print(f"relume: sbatch cannot be run: {error.strerror}", file=sys.stderr)
        return Receipt(NOT_FOUND)
    os.close(child_output)
    # Ctrl-C reaches sbatch too and is sbatch's to answer; a handler, because an ignored signal would be inherited.
    signal.signal(signal.SIGINT, lambda *_: None)
    if stdin is not None:
        assert process.stdin is not None  # asked for above
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(stdin)
    text = _pass_on(output)
    code = process.wait()
    return read_receipt(text, parsable, code if code >= 0 else 128 - code)


def _output_for_child() -> tuple[int, int]:
    """(our end, sbatch's end). On a terminal sbatch must find one too, to write line by line, also with --wait."""
    if not sys.stdout.isatty():
        return os.pipe()
    import tty

    ours, theirs = os.openpty()
    tty.setraw(theirs)
    return ours, theirs


def _pass_on(output: int) -> bytes:
    """Copy to standard output until the end; returns the last 64 KiB."""
    seen = b""
    while True:
        try:
            data = os.read(output, 65536)
        except OSError:  # how a terminal says that its other end is closed
            data = b""
        if not data:
            os.close(output)
            return seen
        seen = (seen + data)[-65536:]
        with suppress(OSError):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


# --- after ------------------------------------------------------------------------------------------------------


def _after(identity: Identity, receipt: Receipt, config: UserConfig, say: _Speaker) -> None:
    """Never changes the exit code: the job is submitted."""
    if receipt.code != 0 and receipt.job_id is None:
        # An sbatch that was killed may have submitted the job all the same: its agent will need the identity.
        if receipt.code <= 128:
            identity.path.unlink(missing_ok=True)
        return
    identity.slurm_job_id, identity.cluster = receipt.job_id, receipt.cluster
    problem = _register(identity, config)
    # Without a job id (sbatch --quiet prints none) the agent registers again: it knows the id.
    identity.registered = (problem is None and receipt.job_id is not None) or _registered_meanwhile(identity)
    try:
        identity.save()
    except OSError as error:
        say(f"{identity.path}: {error.strerror}")
    if problem is not None:
        say(f"{problem}; the job is submitted, its agent will register it when it can")


def _registered_meanwhile(identity: Identity) -> bool:
    """The job may have started already, and its agent may have registered it."""
    with suppress(IdentityError):
        return load_identity(identity.path).registered
    return False


def _register(identity: Identity, config: UserConfig) -> str | None:
    """None if the controller knows the run now, else why not."""
    if not identity.url:
        return "no controller is configured (RELUME_URL or ~/.config/relume/config.json)"
    if not config.api_token:
        return "no API token is configured (RELUME_API_TOKEN or ~/.config/relume/config.json)"
    from worker_hooks.agent.registration import register

    return register(identity, identity.url, config.api_token, REGISTER_LIMIT_S)
