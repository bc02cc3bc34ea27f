"""Where each share of one checkpoint comes from, for every rank: its own node, shared storage, or another node.

Theory. All ranks know the same: which node holds which share (gathered), whether shared storage has the step, and which
copies were found bad meanwhile. So each of them works out alone, and equally, where any rank takes any share from and
who answers for its bytes. Only two things are done together: what is found is gathered, and what a node lacks and its
ranks want is brought to it. A copy that turns out bad is left out and everything is worked out again; the checkpoint
itself is given up only when some share is nowhere.
"""

import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from worker_hooks.protocol.generations import read_rank_file
from worker_hooks.protocol.manifest import Manifest
from worker_hooks.protocol.messages import MessageError
from worker_hooks.protocol.tiers import LOCAL, SHARED, Tier, shelf
from worker_hooks.protocol.trash import TRASH
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.tiers.exchange import CopyFailed, Exchange
from worker_hooks.training.tiers.holdings import Held, heads, held, set_aside
from worker_hooks.training.tiers.nodes import Nodes
from worker_hooks.training.tiers.share_stream import Parts

_SHARE = re.compile(r"rank-(\d{5,})\.")
Place = Literal["local", "peer", "shared"]


@dataclass(frozen=True)
class Ground:
    """What an attempt has to look for checkpoints in. `local`: this run's folder on this node, None without that tier;
    `exchange`: None on a single node."""

    run: Path
    coordinator: Coordinator
    nodes: Nodes
    local: Path | None = None
    exchange: Exchange | None = None

    @property
    def node(self) -> str:
        return self.nodes.names[self.coordinator.rank]

    @property
    def first(self) -> bool:
        """Whether this rank speaks for its node's folder."""
        return self.nodes.first(self.coordinator.rank)


class Sources:
    """Of one checkpoint. `tiers`: where it counts. `said`: what happened to copies of it, on every rank the same."""

    def __init__(self, ground: Ground, name: str, tiers: Sequence[Tier]) -> None:
        self.name = name
        self.tiers = tuple(tiers)
        self.said: list[str] = []
        self._ground = ground
        self._manifest: Manifest | None = None
        self._holders: dict[int, list[str]] = {}
        self._refused: dict[tuple[str, int], str] = {}
        self._brought: set[tuple[str, int]] = set()
        self._heads: Path | None = None

    @property
    def folder(self) -> Path:
        """Whose manifest is believed."""
        return shelf(self._ground.run, SHARED if SHARED in self.tiers else LOCAL) / self.name

    @property
    def folders(self) -> list[Path]:
        """Every folder on shared storage in which it counts."""
        return [shelf(self._ground.run, tier) / self.name for tier in self.tiers]

    # --- worked out alone -------------------------------------------------------------------------------------------

    def share(self, share: int) -> Path:
        """The folder in which this rank reads a share; one that its node lacks is there in the parts that it needs."""
        where = self._where(self._ground.node, share)
        if where == "shared":
            return self._shared
        return self._local if where == "local" else self._made_heads / self.name

    def answers(self, rank: int, shares: Iterable[int]) -> list[int]:
        """The shares of which that rank reads every byte. Each has one such rank, where there is a copy."""
        return [share for share in shares if self._answers(share) == rank]

    def places(self, shares: Iterable[int]) -> dict[Place, int]:
        """Of how many of these shares this rank read the bytes from where."""
        counts: dict[Place, int] = {}
        for share in shares:
            where = self._where(self._ground.node, share)
            brought = where == "absent" or (self._ground.node, share) in self._brought
            place: Place = "peer" if brought else "local" if where == "local" else "shared"
            counts[place] = counts.get(place, 0) + 1
        return counts

    @property
    def lacking(self) -> bool:
        """Whether some node lacks some share."""
        return any(self._where(node, share) == "absent" for node in self._ground.nodes.order for share in self._holders)

    def _where(self, node: str, share: int) -> Literal["local", "shared", "absent"]:
        if self._is_local(node, share):
            return "local"
        return "shared" if SHARED in self.tiers else "absent"

    def _is_local(self, node: str, share: int) -> bool:
        return node in self._holders.get(share, ())

    def _answers(self, share: int) -> int:
        """The rank that wrote it, where its node has it; otherwise one that need not have it brought."""
        nodes = self._ground.nodes
        usual = share % len(nodes.names)
        if self._where(nodes.names[usual], share) != "absent" or not self._holders.get(share):
            return usual
        there = nodes.ranks(self._holders[share][0])
        return there[share % len(there)]

    # --- together ---------------------------------------------------------------------------------------------------

    def settle(self, manifest: Manifest) -> str | None:
        """Find out who holds what. Collective. Returns why the checkpoint is not whole, None if it is."""
        self._manifest = manifest
        if self._ground.local is None:
            return None
        mine = held(self._local, manifest) if self._ground.first else Held()
        said = self._ground.coordinator.gather({"shares": mine.shares, "problems": list(mine.problems.items())})
        self._holders = {ref.rank: [] for ref in manifest.ranks}
        for node, found in zip(self._ground.nodes.names, said, strict=True):
            for share, problem in found["problems"]:
                self._refuse(node, share, problem, bad=True)
            for share in found["shares"]:
                if (node, share) not in self._refused:
                    self._holders[share].append(node)
        nowhere = [] if SHARED in self.tiers else [share for share, nodes in self._holders.items() if not nodes]
        if nowhere:
            return "; ".join(self._why_nowhere(share) for share in nowhere)
        return self._tell_heads()

    def bring(self, wanted: Mapping[int, Parts | None]) -> bool:
        """Copy to each node the shares that its ranks want and it lacks, and to a rank what it wants of others.

        `wanted`: None for a whole share. Collective. False: work it out again.
        """
        ground = self._ground
        absent = {share: parts for share, parts in wanted.items() if self._where(ground.node, share) == "absent"}
        said = ground.coordinator.gather(sorted(share for share, parts in absent.items() if parts is None))
        needs: dict[str, list[int]] = {
            node: sorted({share for rank in ground.nodes.ranks(node) for share in said[rank]})
            for node in ground.nodes.order
        }
        mine = ground.nodes.ranks(ground.node)
        tasks = needs[ground.node][mine.index(ground.coordinator.rank) :: len(mine)]
        begin = len(tasks) * ground.nodes.order.index(ground.node) // len(ground.nodes.order)
        tasks = tasks[begin:] + tasks[:begin]  # or all nodes would ask the first holder at once
        fetched = [self._fetched(share) for share in tasks]
        few = {share: parts for share, parts in absent.items() if share not in needs[ground.node]}
        fetched += [self._fetched(share, parts) for share, parts in sorted(few.items())]
        failed = [failure for failure in fetched if failure is not None]
        failures = [failure for found in ground.coordinator.gather(failed) for failure in found]
        for holder, share, problem, bad in failures:
            self._refuse(holder, share, problem, bad=bad)
        if failures:
            return False
        for node, shares in needs.items():
            for share in shares:
                self._holders[share].append(node)
                self._brought.add((node, share))
        return True

    def blame(self, problems: Sequence[Iterable[tuple[int | None, str]]]) -> list[str]:
        """What each rank found wrong, by rank: copies on nodes are left out from now on. Returns what is wrong with
        the checkpoint on shared storage. The same on every rank."""
        shared: list[str] = []
        brought: list[tuple[str, int, str]] = []
        for rank, found in enumerate(problems):
            node = self._ground.nodes.names[rank]
            for share, problem in found:
                if share is not None and self._is_local(node, share):
                    self._refuse(node, share, problem, bad=True)
                elif share is not None and self._where(node, share) == "absent":
                    brought.append((node, share, problem))
                else:
                    shared.append(problem)
        for node, share, problem in brought:
            # Not bad yet: they were kept on this node since. A rank of the holder's reads every byte there and says so.
            self._refuse(self._holders[share][0], share, f"what {node} was brought of it: {problem}", bad=False)
        return shared

    def broken(self, error: OSError) -> tuple[int, str] | None:
        """The share on this node that an error of its disk is about, and what it says: there are other sources.

        None for an error of something else.
        """
        path, ground = Path(str(error.filename)), self._ground
        if ground.local is None or not path.is_relative_to(self._local):
            return None
        match = _SHARE.match(str(path.relative_to(self._local)))
        return (int(match[1]), str(error)) if match else None

    def close(self) -> None:
        """Forget the parts that were brought to this rank alone."""
        if self._heads is not None:
            shutil.rmtree(self._heads, ignore_errors=True)

    # --- small steps ------------------------------------------------------------------------------------------------

    @property
    def _made_heads(self) -> Path:
        """A folder of this process alone, on the node's disk: there is room for shares. Named as trash, so that
        whoever tidies up after a kill removes it."""
        if self._heads is None:
            assert self._ground.local is not None
            self._ground.local.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._heads = Path(tempfile.mkdtemp(prefix=f"{TRASH}parts-", dir=self._ground.local))
        return self._heads

    @property
    def _local(self) -> Path:
        assert self._ground.local is not None
        return self._ground.local / self.name

    @property
    def _shared(self) -> Path:
        return shelf(self._ground.run, SHARED) / self.name

    def _refuse(self, node: str, share: int, problem: str, *, bad: bool) -> None:
        if (node, share) in self._refused:
            return
        self._refused[node, share] = problem
        self.said.append(f"{self.name}: the share of rank {share} on {node}: {problem}")
        if bad and node == self._ground.node and self._ground.first:
            set_aside(self._local, share)

    def _fetched(self, share: int, parts: Parts | None = None) -> tuple[str, int, str, bool] | None:
        """What failed, of which copy; None if the share, or these parts of it, are here now."""
        ground, holders = self._ground, self._holders[share]
        holder = holders[0] if parts else holders[ground.nodes.order.index(ground.node) % len(holders)]
        assert ground.exchange is not None and self._manifest is not None
        ranks, ref = ground.nodes.ranks(holder), self._manifest.ranks[share]
        there = ranks[share % len(ranks)]
        try:
            if parts is None:
                ground.exchange.get(there, self.name, share, ref.digest)
            else:
                ground.exchange.get_parts(there, self.name, ref, parts, self._made_heads / self.name)
        except CopyFailed as error:
            return holder, share, str(error), error.damaged
        return None

    def _tell_heads(self) -> str | None:
        """Every rank needs every index; those that some node lacks come from the first node that has them. Returns
        which nodes cannot keep them, and why."""
        ground, said = self._ground, {}
        absent = [
            share for share in self._holders if any(self._where(node, share) == "absent" for node in ground.nodes.order)
        ]
        for share in absent:
            if ground.first and self._holders[share][0] == ground.node:
                try:
                    said[str(share)] = heads(self._local, share)
                except (OSError, ValueError):
                    said[str(share)] = {}  # what is not there is found missing, and the copy left out
        if not absent:
            return None
        found = [texts for told in ground.coordinator.gather(said) for texts in told.values()]
        failed = ground.coordinator.gather(self._kept(found))
        nodes = {node: why for node, why in zip(ground.nodes.names, failed, strict=True) if why is not None}
        return "; ".join(f"{node} cannot keep what it lacks: {why}" for node, why in nodes.items()) or None

    def _kept(self, found: Iterable[Mapping[str, str]]) -> str | None:
        """What this node's disk said, if it does not take them: that is no outage, an older step may need no disk."""
        try:
            for name, text in (pair for texts in found for pair in texts.items()):
                path = self._made_heads / self.name / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode())
        except OSError as error:
            return str(error)
        return None

    def _why_nowhere(self, share: int) -> str:
        told = {node: f"on {node}: {problem}" for (node, number), problem in self._refused.items() if number == share}
        for node in self._were_at(share):
            away = node not in self._ground.nodes.order
            told.setdefault(node, f"on {node}, " + ("which is not in this job" if away else "where it is no more"))
        only = "only " if len(told) == 1 else ""
        return f"the share of rank {share} was {only}" + (" and ".join(told.values()) or "on no node of this job")

    def _were_at(self, share: int) -> list[str]:
        """The nodes that its rank file names, if the index still has it."""
        try:
            saving: dict[str, Any] = read_rank_file(shelf(self._ground.run, LOCAL) / self.name, share).saving
        except (OSError, MessageError):
            return []
        return [str(saving[key]) for key in ("node", "copy") if saving.get(key)]
