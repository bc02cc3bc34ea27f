"""What all ranks of an attempt see: a few words by key, for agreeing out of band (`agreement`, `turns`)."""

from typing import Any, Protocol


class Board(Protocol):
    """What all ranks see. Nothing here waits for a key to appear; errors are OSError or RuntimeError."""

    def read(self, key: str) -> str | None: ...
    def write(self, key: str, value: str) -> None: ...
    def add(self, key: str, count: int) -> int: ...


class OwnBoard:
    """Of a single rank."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def read(self, key: str) -> str | None:
        return self._values.get(key)

    def write(self, key: str, value: str) -> None:
        self._values[key] = value

    def add(self, key: str, count: int) -> int:
        self._values[key] = str(int(self._values.get(key, "0")) + count)
        return int(self._values[key])


class StoreBoard:
    """On the store that the ranks met at, through a connection of its own where the store gives one: a question here
    never waits behind another thread's."""

    def __init__(self, store: Any, prefix: str) -> None:
        import torch.distributed as dist

        try:
            store = store.clone()
        except (AttributeError, RuntimeError, NotImplementedError):
            pass
        self._store = dist.PrefixStore(prefix, store)

    def read(self, key: str) -> str | None:
        if not self._store.check([key]):
            return None
        text: str = self._store.get(key).decode()
        return text

    def write(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def add(self, key: str, count: int) -> int:
        total: int = self._store.add(key, count)
        return total
