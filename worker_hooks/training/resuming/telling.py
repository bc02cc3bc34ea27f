"""What a resume tells people: rank 0's log, and signs in the telemetry for the job's page."""

import sys

from worker_hooks.protocol.tiers import SHARED
from worker_hooks.training.identity import Identity
from worker_hooks.training.resuming import candidates, verify
from worker_hooks.training.resuming.candidates import Source
from worker_hooks.training.telemetry import Telemetry


class Telling:
    def __init__(self, identity: Identity, telemetry: Telemetry) -> None:
        self._identity = identity
        self._telemetry = telemetry

    def outcome(self, source: Source, checks: list[verify.Check]) -> None:
        """One line in rank 0's log: where nobody has a page, nothing else tells what is not shown to be equal."""
        if self._identity.rank != 0:
            return
        odd = [" ".join(filter(None, (check.name, check.code))) for check in checks if check.outcome != verify.PASS]
        said = verify.worst(checks) + (f" ({', '.join(odd)})" if odd else "")
        _say(f"goes on after step {source.manifest.step}, {source.folder.name}: {said}")

    def storage(self, source: Source | None) -> None:
        """What a person should know about the folder: a hint that misleads, progress that is given up, a broken file of
        the attempt before."""
        run = self._identity.run
        self._sign("generation_broken", candidates.broken_before(run, self._identity.generation))
        if source is not None:
            if SHARED in source.sources.tiers:  # the hint is about shared storage
                self._sign("checkpoint_pointer", candidates.pointer_problem(run, source.folder.name))
        elif bad := candidates.bad_checkpoints(run):
            self._sign("restarted_from_scratch", f"RESTARTED_FROM_SCRATCH allowed by fresh_start: {'; '.join(bad)}")

    def copies(self, code: str, text: str) -> None:
        """What happened to copies on nodes."""
        _say(text)
        self._sign(code, text)

    def _sign(self, code: str, raw: str | None) -> None:
        if raw is not None:
            self._telemetry.record("sign", code=code, raw=raw[:4096], layer="storage", source="training")


def _say(text: str) -> None:
    print(f"relume: {text}", file=sys.stderr, flush=True)
