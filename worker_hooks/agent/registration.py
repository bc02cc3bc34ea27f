"""Registers a run that the wrapper could not register (docs/formats.md section 5), in the reporter's thread."""

import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from worker_hooks.agent.identity import Identity, IdentityError, UserConfig, load_identity
from worker_hooks.agent.transport import TransportError, post_json

REGISTER = "/api/v1/register"
CALL_LIMIT_S = 3.0
WAIT_CAP_S = 60.0
LOOK_S = 1.0
WRAPPER_S = 2.0


@dataclass(frozen=True)
class Registered:
    """`problem`: None if the controller knows the run now, else why not. `measured`: `step_s` and `save_s` (until a
    save counts) of an earlier run of this name, as far as known."""

    problem: str | None
    measured: dict[str, float] = field(default_factory=dict)


def register(identity: Identity, url: str, api_token: str, limit_s: float) -> Registered:
    """One attempt. Never raises."""
    body = json.dumps(identity.registration()).encode()
    try:
        answer = post_json(url, REGISTER, api_token, body, limit_s)
    except TransportError as error:
        return Registered(f"{url} does not answer: {error}")
    if answer.status == 200 and isinstance(answer.data, dict):
        return Registered(None, _measured(answer.data.get("measured")))
    return Registered(f"{url} answered {answer.status}: {json.dumps(answer.data)[:200]}")


def _measured(told: object) -> dict[str, float]:
    if not isinstance(told, dict):
        return {}
    return {name: float(told[name]) for name in ("step_s", "save_s") if isinstance(told.get(name), int | float)}


@dataclass
class Registrar:
    """Keeps an identity registered. Only the leading agent registers; the others watch the file it marks.

    The wrapper registers right after sbatch answered, so a job that starts at once gives it a moment first.
    """

    identity: Identity
    url: str
    config: UserConfig
    leads: bool
    say: Callable[[str], None]
    slurm_job_id: str
    cluster: str
    wait_s: float = LOOK_S
    next_try: float = field(default_factory=lambda: time.monotonic() + WRAPPER_S)
    _failures: int = 0
    _doubted: bool = False

    def ready(self) -> bool:
        """May messages be posted? Tries to make it so; False means: ask again after `wait_s`."""
        if not self._doubted and (self.identity.registered or self._marked_by_somebody()):
            return True
        if time.monotonic() < self.next_try:
            return False
        return self._try() if self.leads else self._try_posting()

    def doubt(self) -> None:
        """The controller does not know the token although the file says registered."""
        self._doubted = True

    def _marked_by_somebody(self) -> bool:
        with suppress(IdentityError):
            self.identity.registered = load_identity(self.identity.path).registered
        return self.identity.registered

    def _try_posting(self) -> bool:
        """Who cannot register can still ask: whether somebody else did, a post tells (now and then)."""
        self._doubted = False
        self._put_off()
        return True

    def _try(self) -> bool:
        if not self.config.api_token:
            if not self._failures:
                self.say("this run is not registered and there is no API token (RELUME_API_TOKEN or config.json)")
            return self._try_posting()
        # An array is registered as a whole, by whichever of its tasks comes first.
        array, _, _ = self.slurm_job_id.partition("_")
        self.identity.slurm_job_id = self.identity.slurm_job_id or (array if self.identity.array else self.slurm_job_id)
        self.identity.cluster = self.identity.cluster or self.cluster or None
        problem = register(self.identity, self.url, self.config.api_token, CALL_LIMIT_S).problem
        if problem is not None:
            if not self._failures:
                self.say(f"this run could not be registered yet: {problem}")
            self._put_off()
            return False
        self.identity.registered, self._doubted, self._failures = True, False, 0
        try:
            self.identity.save()
        except OSError as error:
            self.say(f"{self.identity.path} could not be marked as registered: {error.strerror}")
        self.say(f"registered {self.identity.run_id} at {self.url}")
        return True

    def _put_off(self) -> None:
        self._failures += 1
        limit = min(WAIT_CAP_S, 2.0 ** min(self._failures, 6))
        self.next_try = time.monotonic() + max(LOOK_S, random.uniform(0.0, limit))
