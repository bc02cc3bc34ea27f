"""The answer of `diagnose` for people: the verdict as a sentence, what to do, and the lines that carry it.

What it prints came out of logs: anything that could move a cursor, hide or reorder text is replaced.
"""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from controller.bundles.answer import CASCADE, CLEARS, CONTEXT, PROOF, node_action, roles
from controller.decision.assessment import Assessment
from controller.decision.evidence import CONTROLLER, JOB, SENSOR, SLURM, Case, Evidence
from controller.decision.meanings import Knowledge
from controller.slurm.hostlist import fold

WIDTH = 100
LABEL = 13
LINES_SHOWN = 40  # of proof, and of what clears
CONSEQUENCES_SHOWN = 3
KINDS_SHOWN = 8
DATED_FROM = 366 * 86400.0

VERDICTS = {
    "gpu_hardware": "A GPU is at fault",
    "node_failure": "A node is at fault",
    "fabric": "The network between the GPUs is at fault",
    "host_oom": "The host's memory ran out",
    "gpu_oom": "The job's GPU memory ran out",
    "user_code": "The program failed by itself",
    "config": "The job's set-up is at fault, not a node",
    "data_or_storage": "Data or storage failed",
    "slurm_infra": "Slurm could not run the job",
    "preempted": "The job was preempted",
    "time_limit": "The time limit was reached",
    "requeued_by_controller": "Slurm requeued the job, which is no failure",
    "hang_unattributed": "The job hung, and nothing shows whose fault it is",
    "resume_fault": "The resumed run is not the run that was saved",
    "unknown": "The evidence does not say what it was",
    "none": "Nothing failed",
}
SURE = {
    "high": "high: it may be acted upon",
    "medium": "medium: likely, with room for doubt",
    "low": "low: a guess that needs a second sign",
}
BUDGETS = {"infra": "infrastructure", "user": "the user's own", "none": "none is charged"}
ORIGINS = {
    SENSOR: "node's sensor",
    SLURM: "Slurm",
    CONTROLLER: "Relume's memory",
    JOB: "job's own word",
}
UNREADABLE = {"kernel": "the kernel log", "job_log": "the job's log"}
Paint = Callable[[str, str], str]
STYLES = {"head": "1", "bad": "1;31", "warn": "33", "ok": "32", "dim": "2"}


def plain(text: str, _style: str) -> str:
    return text


def coloured(text: str, style: str) -> str:
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def report(case: Case, found: Assessment, knowledge: Knowledge, paint: Paint = plain, name: str = "") -> str:
    """At most WIDTH columns wide. `name`: of the scenario, where there are several."""
    writer = _Writer(case, found, knowledge, paint)
    head = [paint(clean(name.replace("_", " ").capitalize()), "head")] if name else []
    return "\n".join([*head, *writer.lines()])


def headline(found: Assessment) -> str:
    """`A GPU is at fault: gn31, GPU 0000:9b:00, Xid 79`."""
    whom = _suspects(found)
    if found.suspect_gpu:
        whom.append(f"GPU {found.suspect_gpu}")
    if found.xid is not None:
        whom.append(f"Xid {found.xid}")
    said = VERDICTS.get(found.verdict, found.verdict.replace("_", " ").capitalize())
    return clean(f"{said}: {', '.join(whom)}" if whom else said)


def clean(text: str) -> str:
    """One line of printable text: no control characters, no colours, nothing that turns the direction of reading."""
    return "".join(c if c.isprintable() else " " if c in "\n\r\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def names(nodes: Iterable[str]) -> str:
    """Folded as Slurm does; a bundle may also call nodes what Slurm never would."""
    try:
        return fold(nodes)
    except ValueError:
        return ", ".join(nodes)


def ranks(numbers: Sequence[int]) -> str:
    """`rank 5`, `ranks 0-3,7`."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {fold([f'r{n}' for n in sorted(numbers)]).removeprefix('r').strip('[]')}"


def _suspects(found: Assessment) -> list[str]:
    nodes = [names(found.suspect_nodes)] if found.suspect_nodes else []
    return [*nodes, ranks(found.suspect_ranks)] if found.suspect_ranks else nodes


@dataclass(frozen=True)
class _Writer:
    case: Case
    found: Assessment
    knowledge: Knowledge
    paint: Paint

    def lines(self) -> Iterable[str]:
        yield from self._verdict()
        yield from self._part("What to do", self._actions())
        by_role = self._by_role()
        yield from self._part("Proof", self._evidence(by_role[PROOF]))
        yield from self._part("What clears", self._evidence(by_role[CLEARS]))
        yield from self._part("Not counted", self._others(by_role))
        yield from self._part("Not known", map(self._bullet, self._unknown()))

    def _verdict(self) -> Iterable[str]:
        tone = {"none": "ok", "unknown": "warn", "hang_unattributed": "warn"}.get(self.found.verdict, "bad")
        for line in textwrap.wrap(headline(self.found) + ".", WIDTH):
            yield self.paint(line, tone)
        yield from self._row("Verdict", self.found.verdict)
        yield from self._row("Sure", SURE.get(self.found.confidence, self.found.confidence))
        yield from self._row("Suspected", ", ".join(_suspects(self.found)) or "nobody")
        yield from self._row("Because", self.found.why)
        for node, view in sorted(self.found.per_node.items()):
            number = "" if view.xid is None else f", Xid {view.xid}"
            yield from self._row(node, f"{view.verdict}{number}" + (f": {view.why}" if view.why else ""))

    # --- what to do -----------------------------------------------------------------------------------------------

    def _actions(self) -> Iterable[str]:
        found = self.found
        yield from self._row("Drain", names(found.drain) if found.drain else "no node")
        if found.withheld:
            why = "would be drained, but only the job's own processes accuse it: it is excluded, and a drain waits for "
            why += "the node's sensor, Slurm or another job (policy: trust_job_evidence)"
            yield from self._row("Withheld", f"{names(found.withheld)} {why}")
        yield from self._row("Exclude", names(found.exclude) if found.exclude else "no node")
        yield from self._row("Requeue", self._requeue())
        yield from self._row("Budget", BUDGETS.get(found.budget, found.budget))
        for node, text in sorted(found.node_actions.items()):
            yield from self._row("Node", node_action(node, text))
        for text in found.follow_up:
            yield from self._row("Check", text)
        for text in found.notes:
            yield from self._row("Note", text)

    def _requeue(self) -> str:
        found = self.found
        if isinstance(found.requeue, str):
            return found.requeue
        if not found.requeue:
            return f"no: {found.stop}" if found.stop else "no"
        delay = f", after {found.requeue_delay_s:g} s" if found.requeue_delay_s else ""
        limit = found.requeue_limit
        return "yes" + delay + ("" if limit is None else f", at most {limit} time{'' if limit == 1 else 's'}")

    # --- evidence -------------------------------------------------------------------------------------------------

    def _by_role(self) -> dict[str, list[Evidence]]:
        """Each in the order of time; what has no time comes in the order of reading, before the rest."""
        role_of = roles(self.found)
        found: dict[str, list[Evidence]] = {PROOF: [], CLEARS: [], CASCADE: [], CONTEXT: []}
        for item in sorted(self.case.evidence, key=lambda e: e.at if e.at is not None else float("-inf")):
            found[role_of.get(item.id, CONTEXT)].append(item)
        return found

    def _evidence(self, items: Sequence[Evidence]) -> Iterable[str]:
        for item in items[:LINES_SHOWN]:
            yield "  " + self.paint(self._where(item), "head")
            yield from textwrap.wrap(clean(item.raw), WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4)
            meaning = self.knowledge.of(item.code)
            if meaning is not None and meaning.text:
                yield from self._wrapped("    = ", meaning.text)
        if len(items) > LINES_SHOWN:
            yield f"  and {len(items) - LINES_SHOWN:,} more (--json lists them)"

    def _where(self, item: Evidence) -> str:
        """`02:11:40  kernel  gn31  x 3  (node's sensor)`."""
        said = [when(item.at), item.layer, item.node or "", "" if item.rank is None else f"rank {item.rank}"]
        said += [burst(item), f"({ORIGINS.get(item.origin, item.origin)})"]
        return clean("  ".join(part for part in said if part))[: WIDTH - 2]

    def _others(self, by_role: dict[str, list[Evidence]]) -> Iterable[str]:
        cascade, context = by_role[CASCADE], by_role[CONTEXT]
        if cascade:
            yield f"  {counted(cascade, 'consequence')} of it"
            for item in cascade[:CONSEQUENCES_SHOWN]:
                line = clean(f"{self._where(item)}  {item.raw}")
                yield "    " + self.paint(line if len(line) <= WIDTH - 4 else line[: WIDTH - 7] + "...", "dim")
            if len(cascade) > CONSEQUENCES_SHOWN:
                yield "    ... (--json lists them)"
        if context:
            kinds = Counter(item.code for item in context).most_common()
            said = ", ".join(f"{code} x {n:,}" if n > 1 else code for code, n in kinds[:KINDS_SHOWN])
            more = "" if len(kinds) <= KINDS_SHOWN else f" and {len(kinds) - KINDS_SHOWN} other kinds"
            yield from self._wrapped("  ", f"{counted(context, 'other sign')} that decided nothing: {said}{more}")

    def _unknown(self) -> Iterable[str]:
        for key in sorted(self.case.unreadable):
            yield f"{UNREADABLE.get(key, key)} could not be read: unknown, not clean"
        blind = [n for n in self.case.nodes if n not in self.case.read_clean]
        if blind and self.case.read_clean:
            yield f"no kernel log of {names(blind)}: unknown, not clean"
        if not self.case.evidence:
            yield "no sign was found in what was read"

    # --- layout ---------------------------------------------------------------------------------------------------

    def _part(self, title: str, lines: Iterable[str]) -> Iterable[str]:
        lines = list(lines)
        if lines:
            yield from ("", self.paint(title, "head"), *lines)

    def _row(self, label: str, text: str) -> Iterable[str]:
        return self._wrapped(f"  {clean(label)[: LABEL - 3]:<{LABEL - 2}}", text)

    def _bullet(self, text: str) -> str:
        return "\n".join(self._wrapped("  ", text))

    def _wrapped(self, begin: str, text: str) -> list[str]:
        return textwrap.wrap(clean(text), WIDTH, initial_indent=begin, subsequent_indent=" " * len(begin)) or [begin]


def when(at: float | None) -> str:
    """A clock of an unknown day, which is counted from 1970 on, has no date."""
    if at is None:
        return "no time"
    try:
        dated = "" if at < DATED_FROM else "%Y-%m-%d "
        return datetime.fromtimestamp(at, tz=UTC).strftime(f"{dated}%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "no time"


def burst(item: Evidence) -> str:
    """`x 1,204 in 5 s`; "" for a single line."""
    if item.count <= 1:
        return ""
    took = None if item.at is None or item.last_at is None else item.last_at - item.at
    return f"x {item.count:,}" if took is None or took < 1 else f"x {item.count:,} in {took:,.0f} s"


def counted(items: Sequence[Evidence], word: str) -> str:
    """`23 consequences`, with the lines behind them where bursts were counted."""
    lines = sum(item.count for item in items)
    said = f"{len(items):,} {word}{'' if len(items) == 1 else 's'}"
    return said if lines == len(items) else f"{said} ({lines:,} lines)"
