"""Collects the evidence of one bundle and gives each piece its id, in the order of reading."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controller.decision.evidence import CONTROLLER, JOB, SENSOR, SLURM, Evidence
from worker_hooks.signs.codes import layer_of
from worker_hooks.signs.flight_recorder import read_dump, refused
from worker_hooks.signs.log import read_lines
from worker_hooks.signs.plain_pickle import MAX_BYTES
from worker_hooks.signs.recogniser import Recogniser
from worker_hooks.signs.sign import RAW_CHARS, Scalar, Sign

ORIGINS = {"kernel": SENSOR, "history": CONTROLLER, "slurm": SLURM}


@dataclass
class Gathered:
    """`site`: makes the recognisers of the site's own patterns, anew for each log because they may remember.
    `hosts`: the names of nodes that the bundle tells, so that a prefix of a line can be known as one."""

    site: Callable[[], Sequence[Recogniser]] = tuple
    evidence: list[Evidence] = field(default_factory=list)
    hosts: tuple[str, ...] = ()

    def kernel(self, lines: Iterable[str], node: str | None) -> None:
        self.take(read_lines("kernel", lines, node=node, hosts=self.hosts), SENSOR)

    def job(self, lines: Iterable[str], node: str | None = None, rank: int | None = None) -> None:
        self.take(read_lines("job", lines, node=node, rank=rank, extra=self.site(), hosts=self.hosts), JOB)

    def take(self, signs: Iterable[Sign], origin: str) -> None:
        for sign in signs:
            self._add(sign, origin)

    def dump(self, file: Path) -> None:
        """A flight recorder dump; the number at the end of its name is the rank."""
        rank = int(file.name.rsplit("_", 1)[1])
        try:
            with file.open("rb") as stream:
                signs = read_dump(stream.read(MAX_BYTES + 1), rank)
        except OSError as error:
            signs = [refused(error.strerror or "cannot be read", rank)]
        self.take(signs, JOB)

    def note(self, code: str, raw: str, source: str, node: str | None = None, **attrs: Scalar) -> None:
        """What a bundle says in words of its own instead of a log's line."""
        sign = Sign(code, raw[:RAW_CHARS], layer_of(code), source, node, attrs=attrs)
        self._add(sign, ORIGINS.get(source, JOB))

    def _add(self, sign: Sign, origin: str) -> None:
        self.evidence.append(
            Evidence(
                id=f"e{len(self.evidence) + 1}",
                code=sign.code,
                layer=sign.layer,
                source=sign.source,
                origin=origin,
                raw=sign.raw,
                at=sign.at,
                node=sign.node,
                rank=sign.rank,
                attrs=dict(sign.attrs),
                count=sign.count,
                last_at=sign.last_at,
            )
        )
