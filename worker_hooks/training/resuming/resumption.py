"""From a checkpoint to the first step: load, warm up, restore the random state, verify. In that order."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from worker_hooks.protocol.losses import read_losses
from worker_hooks.training.data.feed import Feed
from worker_hooks.training.errors import VerificationFailed
from worker_hooks.training.identity import Identity
from worker_hooks.training.resuming import candidates, elastic, first_update, verify
from worker_hooks.training.resuming.candidates import Source
from worker_hooks.training.resuming.replay import Replay, demand_replay, suspects
from worker_hooks.training.resuming.resume import Loading
from worker_hooks.training.resuming.telling import Telling
from worker_hooks.training.sabotage import Sabotage
from worker_hooks.training.state import ddp, random_state
from worker_hooks.training.state.tracked import Tracked
from worker_hooks.training.telemetry import Telemetry
from worker_hooks.training.tiers.sources import Ground


@dataclass(frozen=True)
class Demands:
    """What the run asks of a resume: equality to the bit, the same number of ranks, no beginning at step 0 again."""

    exact: bool
    elastic: str | None
    fresh_start: bool = False
    config_digest: str | None = None


class Resumption:
    """One resume of one rank. `ready` only after the verification passed; without a checkpoint it is ready at once."""

    def __init__(
        self, identity: Identity, ground: Ground, telemetry: Telemetry, sabotage: Sabotage, demands: Demands
    ) -> None:
        self.source: Source | None = None
        self.replay = Replay({}, 0, exact=True)
        self.elastic: elastic.Plan | None = None
        self.max_step_before = 0
        self.ready = False
        self._identity = identity
        self._ground = ground
        self._coordinator = ground.coordinator
        self._telemetry = telemetry
        self._telling = Telling(identity, telemetry)
        self._sabotage = sabotage
        self._demands = demands
        self._restored: dict[str, Any] = {}
        self._suspects: list[str] = []
        self._checks: list[verify.Check] = []
        self._lease = ExitStack()
        self._set_aside: Callable[[Any, str], None] = lambda folder, reason: None

    @property
    def step(self) -> int:
        return self.source.manifest.step if self.source else 0

    @property
    def epoch(self) -> int:
        return int(self.source.own.data["epoch"]) if self.source else 0

    def accumulation(self, asked: int) -> int:
        """Batches per update: what the policy found, now or in an earlier attempt, unless the script asks for another.
        Not what was seen: an attempt of one update that the end of an epoch cut short says nothing."""
        if self.elastic is not None:
            return self.elastic.accumulation
        data = self.source.first.data if self.source is not None else {}
        if data.get("accumulation_asked") != asked:
            return asked
        return int(data.get("accumulation_now", data["accumulation"]))

    def begin(self, tracked: Tracked, feeds: dict[str, Feed], set_aside: Callable[[Any, str], None]) -> None:
        """Load the newest that is intact. What must come last waits for `complete`. Collective."""
        self._telemetry.phase("loading")
        self._set_aside = set_aside
        self.source = Loading(
            self._ground,
            tracked,
            set_aside,
            refuse=lambda source: self._planned(source, feeds),
            fresh_start=self._demands.fresh_start,
            lease=self._lease,
            tell=self._telling.copies,
        ).newest()
        if self._identity.rank == 0:
            self._telling.storage(self.source)
        if self.source is None:
            # Steps done before and lost are not new when they come again. Nothing was restored, so nothing is compared.
            me = self._identity
            self.max_step_before = max(read_losses(me.run, me.rank, before_generation=me.generation), default=0)
            self.ready = True
            self._telemetry.start_step(0)
            self._telemetry.phase("training")
            return
        self.elastic = self._planned(self.source, feeds)
        self._take_up(self.source, tracked, feeds)
        self._telemetry.start_step(self.step)
        self._restored = self._restored_from(self.source)
        self._telemetry.event("loaded", step=self.step, folder=self.source.folder.name, **self._restored)
        self._warm_up(self.source, tracked)

    def complete(self, tracked: Tracked, opened: str | None, feed: Feed | None) -> None:
        """Random state last, then everything compared; from here on nothing touches the run but the run.

        `feed` is the tracked loader just opened under the name `opened`, if there is one. Collective.
        """
        source = self.source
        assert source is not None
        if source.exact:
            random_state.restore(source.own.random["state"])
        if self._identity.rank == self._identity.world_size - 1:
            self._sabotage.random()
        digests = random_state.digests(random_state.capture())
        me = self._identity
        layout = verify.layout_check(source, tracked, me.world_size, exact=self._demands.exact)
        same = layout.outcome != verify.RESHARDED
        position = self._position_check(source, opened, feed, same_layout=same)
        if not same:
            self.replay.loosen(comparable=self._same_samples(source, opened, feed))
        checks = [
            *verify.state_checks(source, tracked, self._coordinator, step=self.step, same_layout=same),
            position,
            *self._of_data(source, opened, feed),
            verify.random_check(source, digests, me.world_size),
            layout,
            *verify.config_check(source, self._demands.config_digest),
        ]
        self._checks = checks
        self.report("before_first_step", self.step, checks)
        self._suspects = suspects(tracked, checks)
        source.close()
        with self._lease, self._walking_back(source):  # rank 0's, for all of them
            verify.demand(checks, self._coordinator, self.step)
        self._telling.outcome(source, checks)
        if self.elastic is not None:
            elastic.scale(tracked.optimizers.values(), tracked.others.values(), self.elastic.lr_factor)
        first_update.watch(tracked, self._rates_moved)
        self.ready = True
        self._telemetry.phase("training")

    def _rates_moved(self, check: verify.Check) -> None:
        """The first update is about to be made with another rate than was verified. Each rank by itself; raises
        VerificationFailed."""
        assert self.source is not None
        self._checks = [check if known.name == check.name else known for known in self._checks]
        self.report("before_first_step", self.step, self._checks)
        self._telling.outcome(self.source, self._checks)
        if check.outcome == verify.FAIL:
            with self._walking_back(self.source):
                raise VerificationFailed(
                    f"relume: verification failed: rank {self._identity.rank}'s first update after step {self.step}: "
                    f"{check.name} {check.code} {check.why}; not training on",
                    (check.name,),
                )

    def open_later(self, name: str, feed: Feed) -> Iterator[Any]:
        """A further tracked loader: its place is compared when it is opened, before the first step that uses it.

        One that was open at the save drew its random numbers then; the run's own are left as they are. Each rank by
        itself: they may open it at different moments. Raises VerificationFailed.
        """
        pending, kept = feed.pending, random_state.capture() if feed.resuming else None
        iterator = feed.open()
        if kept is not None:
            random_state.restore(kept)
        if self.source is not None and pending:
            self._compare_later(self.source, name, feed)
        return iterator

    def _compare_later(self, source: Source, name: str, feed: Feed) -> None:
        same = all(check.outcome != verify.RESHARDED for check in self._checks if check.name == "layout")
        found = [self._position_check(source, name, feed, same_layout=same), *self._of_data(source, name, feed)]
        self._checks = [*self._checks, *(replace(check, name=f"{check.name}:{name}") for check in found)]
        self.report("before_first_step", self.step, self._checks)
        failed = [check for check in found if check.outcome == verify.FAIL]
        with self._walking_back(source):
            if failed:
                raise VerificationFailed(
                    f"relume: verification failed: rank {self._identity.rank} opens {name} elsewhere than at the save "
                    f"of step {self.step}: {failed[0].actual}, expected {failed[0].expected}; not training on",
                    tuple(check.name for check in failed),
                )

    def _of_data(self, source: Source, opened: str | None, feed: Feed | None) -> list[verify.Check]:
        """What became of the samples, and whether the place fits the updates done."""
        if feed is None:
            return []
        data = source.first.data
        steady = bool(data.get("steady")) and opened == next(iter(data["loaders"]), None)
        accounted = feed.accounted(self.step, int(data["accumulation"])) if steady else []
        return [verify.Check(*found) for found in (*accounted, *feed.checks())]

    def replayed(self, step: int, loss: float) -> None:
        """Compare a step that was done before; raises VerificationFailed."""
        check = self.replay.check(step, loss, self._suspects)
        if check is not None:
            self.report("replay", step, [check])
            with self._walking_back(self.source):
                demand_replay(check, step, self._identity.rank)

    def report(self, stage: str, step: int, checks: list[verify.Check]) -> None:
        self._telemetry.record(
            "verification",
            rank=self._identity.rank,
            stage=stage,
            step=step,
            outcome=verify.worst(checks),
            checks=[check.record() for check in checks],
            **self._restored,
        )

    def _planned(self, source: Source, feeds: dict[str, Feed]) -> elastic.Plan | None:
        """Raises ElasticRefused."""
        first = next(iter(feeds), None)
        together = None if first is None else feeds[first].global_batch
        return elastic.plan_for(self._demands.elastic, source, self._identity.world_size, first, together)

    @contextmanager
    def _walking_back(self, source: Source | None) -> Iterator[None]:
        """A checkpoint whose resume fails is set aside once: the next attempt takes the one before. If that fails as
        well, nothing more is given up and a person is asked."""
        try:
            yield
        except VerificationFailed as error:
            if source is not None and candidates.may_walk_back(self._identity.run, source.folder.name):
                for folder in source.sources.folders:
                    self._set_aside(folder, f"{candidates.FAILED_VERIFICATION} ({', '.join(error.parts)}): {error}")
            raise

    @staticmethod
    def _restored_from(source: Source) -> dict[str, Any]:
        """How many shares this rank read from where; nothing where all came from shared storage."""
        places = source.sources.places(source.reader().used)
        return {} if set(places) <= {"shared"} else {"restored_from": places}

    def _take_up(self, source: Source, tracked: Tracked, feeds: dict[str, Feed]) -> None:
        """What is not in the tracked objects: threads, positions, the record of losses."""
        torch.set_num_threads(source.first.run["threads"])
        for name, position in source.own.data["loaders"].items():
            if name in feeds:
                feeds[name].resume(position)
        self._read_record(source)
        self._sabotage.weights(tracked.parameters().values())
        self._sabotage.learning_rate(tracked.optimizers.values())

    def _read_record(self, source: Source) -> None:
        """What this rank recorded before: to compare with, and to complete where a dead host lost lines."""
        me = self._identity
        known = read_losses(me.run, me.rank, before_generation=me.generation)
        for step, loss in source.own.losses if source.exact else ():
            if step not in known:
                self._telemetry.loss(step, float.fromhex(loss))
        beyond = {step: loss for step, loss in known.items() if step > self.step}
        self.max_step_before = max([self.step, *beyond])
        same = self._same_ranks(source)
        self.replay = Replay(known, self.step, exact=self._demands.exact, comparable=same)

    def _same_ranks(self, source: Source) -> bool:
        """On another number of ranks each one sees other samples: its own losses and positions do not carry over."""
        return source.manifest.world_size == self._identity.world_size

    def _warm_up(self, source: Source, tracked: Tracked) -> None:
        self._telemetry.phase("warming_up")
        orders = source.first.run["layout"]["buckets"]
        for path, replica in ddp.replicas(tracked.models).items():
            if orders.get(path) is not None and ddp.rebuilds(replica):
                ddp.warm_up(replica, orders[path])
        self._telemetry.event("warmed_up")

    def _position_check(
        self, source: Source, opened: str | None, feed: Feed | None, *, same_layout: bool
    ) -> verify.Check:
        saved = source.own.data["loaders"]
        if feed is None or opened not in saved:
            return verify.Check("data_position", verify.DEGRADED, saved, None)
        return verify.position_check(saved[opened], feed.actual(), same_ranks=same_layout)

    def _same_samples(self, source: Source, opened: str | None, feed: Feed | None) -> bool:
        """Whether this rank's next samples are those it would have had: then its losses can still be compared."""
        if feed is None or opened is None or not self._same_ranks(source):
            return False
        saved = source.own.data["loaders"].get(opened, {}).get("next_ids_digest")
        return saved is not None and saved == feed.actual().get("next_ids_digest")
