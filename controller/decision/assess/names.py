"""Which node a name, an address or a rank stands for."""

from collections.abc import Iterable

from controller.decision.evidence import Case, Evidence


class Names:
    """What one case knows of its nodes. A name is matched without regard to case and domain; an address by what the
    case says, else by what the reporters say of themselves (`local_gid` in the lines of a known host)."""

    def __init__(self, case: Case) -> None:
        self._nodes = {_plain(name): name for name in sorted(_all_nodes(case))}
        self._short: dict[str, str | None] = {}
        for name in self._nodes.values():
            short = _plain(name).split(".", 1)[0]
            self._short[short] = name if short not in self._short else None  # two of a kind: neither
        self._addresses = {_address(key): self.canonical(value) for key, value in case.addresses.items()}
        self._ranks = {rank: self.canonical(node) for rank, node in case.rank_nodes.items()}
        self._learn(case.evidence)

    def canonical(self, name: str) -> str:
        """The case's own spelling of a node; an unknown one stays as it is."""
        plain = _plain(name)
        if plain in self._nodes:
            return self._nodes[plain]
        return self._short.get(plain.split(".", 1)[0]) or name.strip()

    def of_rank(self, rank: int | None) -> str | None:
        return self._ranks.get(rank) if rank is not None else None

    def ranks_on(self, node: str) -> tuple[int, ...]:
        return tuple(sorted(rank for rank, name in self._ranks.items() if name == node))

    def of_address(self, address: object) -> str | None:
        """The node behind an address or a host name as a line spells it; None where nobody knows."""
        if not isinstance(address, str) or not address:
            return None
        plain = _address(address)
        if plain in self._addresses:
            return self._addresses[plain]
        found = self._nodes.get(_plain(address)) or self._short.get(_plain(address).split(".", 1)[0])
        if found is not None or "." in address or ":" in address:
            return found
        return None

    def of(self, item: Evidence) -> str | None:
        """The node that a piece of evidence was read on: by its own word, else by its rank, else by its host."""
        if item.node:
            return self._addresses.get(_address(item.node)) or self.canonical(item.node)
        if (node := self.of_rank(item.rank)) is not None:
            return node
        host = item.attrs.get("host")
        return self.canonical(host) if isinstance(host, str) and host else None

    def _learn(self, evidence: Iterable[Evidence]) -> None:
        told: dict[str, set[str]] = {}
        for item in evidence:
            gid, node = item.attrs.get("local_gid"), self.of(item)
            if isinstance(gid, str) and gid and node is not None:
                told.setdefault(_address(gid), set()).add(node)
        for gid, nodes in told.items():
            if len(nodes) == 1:
                self._addresses.setdefault(gid, nodes.pop())


def _all_nodes(case: Case) -> set[str]:
    known: set[str] = {*case.nodes, *case.rank_nodes.values(), *case.addresses.values(), *case.node_facts}
    known |= {*case.gpus, *case.read_clean, *case.healthy_nodes}
    return {name.strip() for name in known if name.strip()}


def _plain(name: str) -> str:
    return name.strip().casefold()


def _address(text: str) -> str:
    """`[::ffff:10.9.2.7]` and `10.9.2.7` are one address."""
    plain = text.strip().casefold().strip("[]").split("%", 1)[0]
    return plain.removeprefix("::ffff:") if "." in plain else plain
