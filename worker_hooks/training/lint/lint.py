"""Is the tracked state complete? Asked when it is restored, and once more, with everything in use, at the first save.

A finding has a stable code and says what, where and what to do. One of level `missing` means that a resume would not
be the same run: it ends the run on every rank, unless the user waived its code. A `note` is only told. What a script
may rightly do without (a scheduler, a scaler, a loader) is looked for before it is missed.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from worker_hooks.training.comms import Coordinator
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.lint import alive as lint_alive
from worker_hooks.training.lint import ranks as lint_ranks
from worker_hooks.training.lint import state as lint_state
from worker_hooks.training.lint.findings import CODES, MISSING, UNWAIVABLE, Finding
from worker_hooks.training.state.tracked import Tracked
from worker_hooks.training.telemetry import Telemetry


class Lint:
    """One rank's lint of one attempt. `waived`: the codes of what was found and accepted, equal on every rank.

    `strict=False` accepts everything that can be accepted. Raises CheckpointError for a code in `waive` that there is
    not, or that cannot be waived.
    """

    def __init__(
        self, tracked: Tracked, coordinator: Coordinator, telemetry: Telemetry, *, strict: bool, waive: Iterable[str]
    ) -> None:
        self.waived: tuple[str, ...] = ()
        self._tracked = tracked
        self._coordinator = coordinator
        self._telemetry = telemetry
        self._strict = strict
        self._waive = {waive} if isinstance(waive, str) else set(waive)
        self._restored: frozenset[str] | None = None
        self._saved = False
        self._told: set[tuple[str, str]] = set()
        wrong = sorted(self._waive - (set(CODES) - UNWAIVABLE))
        if wrong:
            raise CheckpointError(f"waive={wrong}: can be waived are {sorted(set(CODES) - UNWAIVABLE)}")

    def at_restore(self) -> None:
        """Before anything is loaded. Collective. Raises CheckpointError on every rank if any found something."""
        self._restored = self._names()
        found = [*lint_state.look(self._tracked), *lint_alive.early_iterators(self._tracked)]
        self.waived = self._judge(self._coordinator.gather([finding.plain() for finding in found]))

    def at_first_save(self, positions: Mapping[str, Mapping[str, Any]]) -> None:
        """Before the first save of the attempt; later calls do nothing. `positions`: of each tracked loader. Collective
        with one rank's small values gathered; device tensors among them are waited for, which the save would do anyway.

        Raises CheckpointError on every rank if any found something.
        """
        if self._saved:
            return
        self._saved = True
        found = [
            *lint_state.look(self._tracked),
            *lint_state.bypassed_loaders(positions),
            *lint_alive.look(self._tracked),
            *self._late(),
        ]
        blocked = any(finding.code in UNWAIVABLE for finding in found)
        values = {} if blocked else lint_ranks.samples(self._tracked, self._coordinator.world_size)
        gathered = self._coordinator.gather({"found": [finding.plain() for finding in found], "values": values})
        differing = [finding.plain() for finding in lint_ranks.compare([said["values"] for said in gathered])]
        waived = self._judge([said["found"] + differing for said in gathered])
        if waived != self.waived and self._coordinator.rank == 0:
            self._telemetry.record("run_facts", rank=0, waived=", ".join(waived))
        self.waived = waived

    def _late(self) -> list[Finding]:
        late = sorted(self._names() - (self._restored or frozenset()))
        why = "tracked after run.restore(), so an earlier state of it is never loaded; track it before"
        return [Finding("late", name, why) for name in late]

    def _names(self) -> frozenset[str]:
        tracked = self._tracked
        return frozenset([*tracked.models, *tracked.optimizers, *tracked.loaders, *tracked.others])

    def _judge(self, by_rank: list[list[list[str]]]) -> tuple[str, ...]:
        """What any rank found, judged the same way on each; returns the codes waived up to now."""
        ranks: dict[Finding, list[int]] = {}
        for rank, said in enumerate(by_rank):
            for item in said:
                ranks.setdefault(Finding(*item), []).append(rank)
        missing = {finding: where for finding, where in ranks.items() if finding.level == MISSING}
        refused = {finding: where for finding, where in missing.items() if not self._accepts(finding.code)}
        if refused:
            raise CheckpointError(self._refusal(refused))
        self._tell(ranks)
        return tuple(sorted({finding.code for finding in missing} | set(self.waived)))

    def _accepts(self, code: str) -> bool:
        return code not in UNWAIVABLE and (code in self._waive or not self._strict)

    def _refusal(self, refused: dict[Finding, list[int]]) -> str:
        lines = [self._line(finding, where) for finding, where in refused.items()]
        codes = sorted({finding.code for finding in refused} - UNWAIVABLE)
        advice = f"\nTo go on all the same: Run(waive={codes}), which each checkpoint then says." if codes else ""
        return "relume: after a resume this would not be the same run:\n" + "\n".join(lines) + advice

    def _tell(self, ranks: dict[Finding, list[int]]) -> None:
        """Once each, in rank 0's log."""
        for finding, where in ranks.items() if self._coordinator.rank == 0 else ():
            word = "waived" if finding.level == MISSING else "note"
            if (finding.code, finding.where) not in self._told:
                self._told.add((finding.code, finding.where))
                print(f"relume: {word}: {self._line(finding, where).strip()}", file=sys.stderr, flush=True)

    def _line(self, finding: Finding, ranks: list[int]) -> str:
        some = f" (ranks {ranks})" if len(ranks) < self._coordinator.world_size else ""
        return f"  [{finding.code}] {finding.where}: {finding.text}{some}"
