"""What the settings make of the tiers, on every rank the same; one rank of an attempt."""

from contextlib import suppress
from functools import partial

from worker_hooks.protocol.generations import NotNewest
from worker_hooks.protocol.tiers import LOCAL, shelf
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.identity import Identity
from worker_hooks.training.saving import retention
from worker_hooks.training.settings import Settings
from worker_hooks.training.telemetry import Telemetry
from worker_hooks.training.tiers.exchange import CopyFailed, Exchange
from worker_hooks.training.tiers.local import LocalTier, Partner
from worker_hooks.training.tiers.nodes import Nodes
from worker_hooks.training.tiers.own_folder import demand_own
from worker_hooks.training.tiers.sources import Ground


class Tiers:
    """`local` is None without a node-local tier, `exchange` on a single node. `ground`: where a resume looks."""

    def __init__(
        self, settings: Settings, coordinator: Coordinator, identity: Identity, telemetry: Telemetry, *, keep: int
    ) -> None:
        """Collective. Raises CheckpointError on every rank where the ranks have other settings than each other, or a
        folder that is not their node's own."""
        self.nodes = Nodes.gather(coordinator, settings.node)
        self.local: LocalTier | None = None
        self.exchange: Exchange | None = None
        self._identity = identity
        self._telemetry = telemetry
        _demand_same(coordinator, self.nodes, settings, keep)
        if settings.local is not None:
            demand_own(coordinator, self.nodes, settings.local, identity.run)
        if settings.local is not None and len(self.nodes.order) > 1:
            self.exchange = Exchange(coordinator, self.nodes, settings.local, identity.generation)
        self.ground = Ground(identity.run, coordinator, self.nodes, settings.local, self.exchange)
        if settings.local is None:
            return
        self.local = LocalTier(
            identity,
            settings.local,
            node=settings.node,
            first=self.nodes.first(identity.rank),
            partner=self._partner() if settings.peer else None,
            told=self._copy_failed,
        )

    def clear_abandoned(self) -> None:
        """What superseded attempts left: in the index, and on this node. Raises OSError, NotNewest."""
        if self._identity.rank == 0:
            retention.empty_trash(shelf(self._identity.run, LOCAL))
            retention.clear_abandoned(self._identity.run, self._identity.generation, LOCAL)
        if self.local is not None:
            self.local.tidy()

    def close(self, saved: int | None = None) -> None:
        """`saved`: the run is over, and that step is saved for good. What lies on the nodes is of no use any more then,
        and they may be somebody else's in a moment, their memory too. Never raises."""
        if saved is not None and self.local is not None:
            with suppress(OSError, ValueError, NotNewest):
                if self._identity.rank == 0:
                    retention.clear_local(self._identity.run, self._identity.generation, saved)
                self.local.clear(saved)
        if self.exchange is not None:
            with suppress(OSError):
                self.exchange.close()

    def _partner(self) -> Partner | None:
        rank = self.nodes.partner(self._identity.rank)
        if rank is None or self.exchange is None:
            if self._identity.rank == 0:
                self._sign(f"peer=True: all ranks run on {self.nodes.order[0]}, so there is no peer to copy to")
            return None
        return Partner(self.nodes.names[rank], partial(self.exchange.put, rank))

    def _copy_failed(self, error: CopyFailed) -> None:
        self._sign(f"no copy on the peer node: {error}")

    def _sign(self, raw: str) -> None:
        self._telemetry.record(
            "sign", code="checkpoint_peer", raw=raw[:2000], layer="storage", source="training", rank=self._identity.rank
        )


def _demand_same(coordinator: Coordinator, nodes: Nodes, settings: Settings, keep: int) -> None:
    """A save that one rank does not take part in would stay incomplete, and no other could begin."""
    mine = {
        "local": settings.local is not None,
        "local_every": settings.local_every,
        "peer": settings.peer,
        "keep_local": keep,
    }
    said = coordinator.gather(mine)
    other = next((rank for rank, theirs in enumerate(said) if theirs != said[0]), None)
    if other is not None:
        raise CheckpointError(
            f"rank 0 on {nodes.names[0]} has {said[0]}, rank {other} on {nodes.names[other]} has {said[other]}: give "
            "all ranks the same (Run's options, or RELUME_LOCAL, RELUME_LOCAL_EVERY and RELUME_PEER)"
        )
