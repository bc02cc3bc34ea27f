"""`relume sbatch`: sbatch with an identity (docs/formats.md sections 1 to 3).

The identity file is written before sbatch runs, so that a job that starts at once finds it; the controller is told
after sbatch has answered, so that it never delays or prevents a submission. Everything heavy is imported there.
"""

import os
import pwd
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from worker_hooks.agent.identity import Identity, IdentityError, UserConfig, load_identity, state_folder, user_config
from worker_hooks.cli.calling import call_sbatch, die_of, installed_options, keep_standard_streams, say
from worker_hooks.cli.receipt import Receipt
from worker_hooks.cli.script_header import Header, HeaderError, read_header
from worker_hooks.cli.script_text import Script, is_script, memory_file, read_script
from worker_hooks.cli.signals import SignalOption, too_late
from worker_hooks.cli.submission import (
    Plan,
    Request,
    UsageError,
    array_of,
    make_plan,
    merged_export_file,
    read_request,
    replace_value,
    without_identity,
)
from worker_hooks.protocol import exit_codes
from worker_hooks.protocol.identity import ANY_TASK, new_run_id, new_token

if TYPE_CHECKING:
    from worker_hooks.agent.registration import Registered

REGISTER_LIMIT_S = 2.0


def main(argv: Sequence[str]) -> int:
    """sbatch's exit code; 2 (our usage errors) and 69 (`--relume-require` unmet) before anything is submitted. Does not
    return if sbatch died of a signal: then it was ours too."""
    keep_standard_streams()
    receipt = _run(argv, dict(os.environ))
    if receipt.died_of is not None:
        die_of(receipt.died_of)
    return receipt.code


def _run(argv: Sequence[str], environ: dict[str, str]) -> Receipt:
    try:
        request = read_request(argv, lambda: installed_options(environ), is_script)
        if request.passes_through:
            return call_sbatch(request.line.argv, environ, None)
        script = read_script(request.line, environ)
        header = read_header(script.text)
    except (UsageError, HeaderError) as error:
        say(str(error))
        return Receipt(exit_codes.USAGE)
    if header.sbatch.has("test-only"):
        return call_sbatch(request.line.argv, environ, script.stdin)
    return _submit(request, header, script, environ)


def _submit(request: Request, header: Header, script: Script, environ: dict[str, str]) -> Receipt:
    config = user_config(environ)
    identity = _new_identity(request, header, script, environ, config)
    plan = make_plan(request, header, environ, _exports(identity), script.text)
    identity.name = _name(plan, script)
    if "dry-run" in plan.settings:
        print(shlex.join(["sbatch", *plan.argv]))
        return Receipt(0)
    tell = _Speaker(plan.quiet)
    for note in plan.notes:
        tell(note)
    if not _write_identity(identity, plan, tell):
        return Receipt(exit_codes.UNAVAILABLE)
    if "require" in plan.settings and not _required(identity, config, tell):
        identity.path.unlink(missing_ok=True)
        return Receipt(exit_codes.UNAVAILABLE)
    if plan.tracked:
        _extend_export_file(plan, request, _exports(identity), tell)
    receipt = call_sbatch(plan.argv, plan.environ, script.stdin, parsable=plan.parsable)
    if plan.tracked:
        _after(identity, receipt, config, plan.signal, tell)
    return receipt


class _Speaker:
    """Our words: stderr only; under `--quiet` only errors, as with sbatch."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def __call__(self, text: str, error: bool = False) -> None:
        if error or not self._quiet:
            say(text)


# --- before -----------------------------------------------------------------------------------------------------


def _new_identity(
    request: Request, header: Header, script: Script, environ: Mapping[str, str], config: UserConfig
) -> Identity:
    settings = {**header.relume, **request.own}
    run_id = new_run_id()
    root = settings.get("checkpoint-root") or environ.get("RELUME_CHECKPOINT_ROOT")
    return Identity(
        run_id=run_id,
        token=new_token(),
        path=(state_folder(environ) / "identities" / f"{run_id}.json").absolute(),
        url=settings.get("url") or config.url,
        user=_user_name(),
        submitted_at=time.time(),
        array=array_of(request, header, environ),
        argv=list(request.line.argv),
        script=script.word,
        script_digest="sha256:" + sha256(script.text).hexdigest() if script.text else None,
        checkpoint_root=str(Path(root).absolute()) if root else None,
    )


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _exports(identity: Identity) -> dict[str, str]:
    """What the job must see: names and paths, never the token. All tasks of an array get the same environment."""
    run_id = identity.run_id + (ANY_TASK if identity.array else "")
    found = {"RELUME_RUN_ID": run_id, "RELUME_IDENTITY": str(identity.path)}
    if identity.checkpoint_root:
        found["RELUME_CHECKPOINT_ROOT"] = identity.checkpoint_root
    return found


def _name(plan: Plan, script: Script) -> str:
    chosen = plan.settings.get("name") or plan.job_name
    return chosen or (Path(script.word).name if script.word else "sbatch")


def _write_identity(identity: Identity, plan: Plan, tell: _Speaker) -> bool:
    """A state folder that cannot be written costs the tracking, not the submission, unless tracking is required."""
    try:
        identity.save()
    except OSError as error:
        required = "require" in plan.settings
        tell(f"{identity.path}: {error.strerror}: the run can be tracked from Slurm's side only", error=required)
        plan.tracked = False
        plan.environ = without_identity(plan.environ)
    return plan.tracked or "require" not in plan.settings


def _required(identity: Identity, config: UserConfig, tell: _Speaker) -> bool:
    problem = _register(identity, config).problem
    if problem is not None:
        tell(f"nothing submitted, because --relume-require was given: {problem}", error=True)
    return problem is None


def _extend_export_file(plan: Plan, request: Request, exports: Mapping[str, str], tell: _Speaker) -> None:
    """sbatch gets the user's variables and ours from a file in memory; the user's own stays as it is."""
    option = request.line.last("export-file")
    if option is None or not option.value:
        return
    try:
        number = option.value if option.value.isdecimal() else None
        content = Path(f"/dev/fd/{number}" if number else option.value).read_bytes()
        descriptor = memory_file("export", merged_export_file(content, exports))
        os.set_inheritable(descriptor, True)
    except (OSError, ValueError) as error:
        tell(f"--export-file={option.value}: {error}")  # sbatch says so too
        return
    in_front = len(plan.argv) - len(request.line.argv)  # a plan puts words only there
    replace_value(plan.argv, option, str(descriptor), in_front)


# --- after ------------------------------------------------------------------------------------------------------


def _after(
    identity: Identity, receipt: Receipt, config: UserConfig, signal: SignalOption | None, tell: _Speaker
) -> None:
    """Never changes the exit code: the job is submitted."""
    if receipt.code != 0 and receipt.job_id is None:
        # An sbatch that was killed may have submitted the job all the same: its agent will need the identity.
        if not 128 < receipt.code < 193:
            identity.path.unlink(missing_ok=True)
        return
    identity.slurm_job_id, identity.cluster = receipt.job_id, receipt.cluster
    registered = _register(identity, config)
    problem = registered.problem
    # Without a job id (sbatch --quiet prints none) the agent registers again: it knows the id.
    identity.registered = (problem is None and receipt.job_id is not None) or _registered_meanwhile(identity)
    try:
        identity.save()
    except OSError as error:
        tell(f"{identity.path}: {error.strerror}")
    if problem is not None:
        tell(f"{problem}; the job is submitted, its agent will register it when it can")
    elif signal is not None and (late := too_late(signal, **registered.measured)):
        tell(late)


def _registered_meanwhile(identity: Identity) -> bool:
    """The job may have started already, and its agent may have registered it."""
    with suppress(IdentityError):
        return load_identity(identity.path).registered
    return False


def _register(identity: Identity, config: UserConfig) -> "Registered":
    from worker_hooks.agent.registration import Registered, register

    if not identity.url:
        return Registered("no controller is configured (RELUME_URL or ~/.config/relume/config.json)")
    if not config.api_token:
        return Registered("no API token is configured (RELUME_API_TOKEN or ~/.config/relume/config.json)")
    return register(identity, identity.url, config.api_token, REGISTER_LIMIT_S)
