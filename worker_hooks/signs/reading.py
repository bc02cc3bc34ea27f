"""Makes the sign of a line: what every recogniser needs."""

from collections.abc import Mapping
from types import MappingProxyType

from worker_hooks.signs.codes import layer_of
from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.sign import RAW_CHARS, Scalar, Sign


def sign_of(
    line: Line,
    code: str,
    attrs: Mapping[str, Scalar | None] = MappingProxyType({}),
    *,
    node: str | None = None,
    rank: int | None = None,
) -> Sign:
    """`node`, `rank`: where the text names them itself. Attributes that are None or "" are left out."""
    return Sign(
        code=code,
        raw=cut(line.raw),
        layer=layer_of(code),
        source=line.source,
        node=line.node if node is None else node,
        rank=line.rank if rank is None else rank,
        at=line.at,
        attrs={name: value for name, value in attrs.items() if value is not None and value != ""},
    )


def cut(text: str) -> str:
    """`text` as the raw line of a sign."""
    return text if len(text) <= RAW_CHARS else text[: RAW_CHARS - 1] + "…"
