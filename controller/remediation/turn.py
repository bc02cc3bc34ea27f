"""One turn of an action: what a handler is given, and the only way it writes down how far it came."""

from collections.abc import Callable
from typing import Any

import structlog
from django.db import transaction
from django.db.models import QuerySet

from controller.clock import aware
from controller.ledger import LostRace
from controller.models import Action, Incident
from controller.site import Site
from controller.slurm.port import SlurmPort

log = structlog.get_logger()

LEASE_S = 20.0
LOG_LINES = 200


class Turn:
    """A claimed action. `stage()` is committed before the Slurm write that it names."""

    def __init__(self, action: Action, site: Site) -> None:
        self.action = action
        self.site = site

    @property
    def port(self) -> SlurmPort:
        return self.site.port

    @property
    def incident(self) -> Incident:
        return self.action.incident

    @property
    def progress(self) -> dict[str, Any]:
        return dict(self.action.progress)

    @property
    def begun(self) -> bool:
        """Something may have been written to Slurm already: from here on it is carried through."""
        return self.action.stage not in ("", "look")

    def now(self) -> float:
        return self.site.clock()

    def stage(self, name: str, text: str = "", *, also: Callable[[], None] | None = None, **progress: Any) -> None:
        """Commits the stage with what a successor must know, and renews the claim; `also` writes rows that must be
        there whenever the stage is. Raises LostRace when the claim is another's by now: then nothing may be written."""
        self._save({"stage": name}, text or name, progress, stage=name, also=also)

    def note(self, text: str, **progress: Any) -> None:
        """Commits what was seen or done."""
        self._save({}, text, progress, stage=self.action.stage)

    def restart(self, progress: dict[str, Any], text: str) -> None:
        """Commits a new beginning of the same action: `progress` replaces what was remembered."""
        self.action.progress = progress
        self.stage("settle", text)

    def renew(self) -> None:
        """Keeps the claim over a short wait. Raises LostRace."""
        until = aware(self.now() + LEASE_S)
        if not self._mine().update(lease_until=until):
            raise LostRace(f"action {self.action.pk} is claimed by somebody else")

    def _mine(self) -> QuerySet[Action]:
        return Action.objects.filter(pk=self.action.pk, state="claimed", lease_owner=self.site.owner)

    def _save(
        self,
        columns: dict[str, Any],
        text: str,
        progress: dict[str, Any],
        *,
        stage: str,
        also: Callable[[], None] | None = None,
    ) -> None:
        now = self.now()
        line = {"at": now, "stage": stage, "text": text}
        lines = [*self.action.log, line][-LOG_LINES:]
        columns = {
            **columns,
            "log": lines,
            "progress": {**self.action.progress, **progress},
            "lease_until": aware(now + LEASE_S),
        }
        with transaction.atomic():
            if not self._mine().update(**columns):
                raise LostRace(f"action {self.action.pk} is claimed by somebody else")
            if also is not None:
                also()
        for name, value in columns.items():
            setattr(self.action, name, value)
        log.info("action", key=self.action.key, stage=stage, text=text)
