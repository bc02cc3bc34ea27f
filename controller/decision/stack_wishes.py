"""Of which ranks of a run that stands still one would like to know where they stand. Pure.

Asked as soon as a stall is suspected, so that the answers are there when it has settled. Once for each stall: a look
stops nobody, yet it is not free, and a second one shows the same. A stall is over when any of its ranks moved.
"""

from collections.abc import Mapping, Sequence

from controller.decision.stalls import Stalled

MOST_RANKS = 8
# So many of them may be suspects: what tells a suspect from a victim are the others.
MOST_SUSPECTS = 5
# A run that stands still again and again is not looked at for ever.
MOST_STALLS = 4


def wanted(found: Stalled, asked: Sequence[float]) -> Mapping[str, tuple[int, ...]] | None:
    """By node its ranks, at most MOST_RANKS in all; None if this stall was asked about already. `asked`: when the
    earlier stalls of this attempt were."""
    since = max(s.since for s in found.standing)
    if len(asked) >= MOST_STALLS or any(at >= since for at in asked):
        return None
    nodes = {s.rank.rank: s.rank.node for s in found.standing}
    suspects = [rank for rank in found.suspects if rank in nodes][:MOST_SUSPECTS]
    others = sorted(nodes.keys() - set(found.suspects))
    chosen = sorted([*suspects, *_spread(others, MOST_RANKS - len(suspects))])
    by_node: dict[str, tuple[int, ...]] = {}
    for rank in chosen:
        by_node[nodes[rank]] = (*by_node.get(nodes[rank], ()), rank)
    return by_node


def _spread(ranks: Sequence[int], room: int) -> list[int]:
    """Evenly over all of them: ranks of one node are neighbours."""
    if len(ranks) <= room:
        return list(ranks)
    return [ranks[place * len(ranks) // room] for place in range(room)]
