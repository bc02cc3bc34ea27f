"""The JSON of an incident bundle (docs/formats.md, section 10) -> the cases that it holds."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.bundles import notes, past, slurm_side
from controller.bundles.fields import BundleError, Fields, Scalar, lines_of, rank_nodes
from controller.bundles.gather import Gathered
from controller.decision.evidence import Case
from worker_hooks.signs.recogniser import Recogniser

Site = Callable[[], Sequence[Recogniser]]
SCENARIO = re.compile(r"scenario_\d+")
RANK = re.compile(r"rank[-_ ]?(\d{1,7})", re.IGNORECASE)
# Keys that are read by name; any other plain value is a fact about the job.
READ = frozenset(
    {"log", "dmesg", "rank_hosts", "ip_hosts", "nodes_of_job", "node", "sinfo", "sacct", "slurm", "slurm_state", "hook"}
    | {"history", "attempts", "attempts_same", "last_step", "prior_success_on_same_nodes", "heartbeats", "other_nodes"}
    | {"evidence"}
)


@dataclass(frozen=True)
class Scene:
    """One case, and the name of its scenario ("" where the bundle has none)."""

    name: str
    case: Case


def read_case(data: object, where: str = "input", site: Site = tuple) -> list[Scene]:
    """The input of a case; a whole case (with `input`) is taken as well. One scene, or one for each `scenario_N`."""
    bundle = Fields.of(data, where)
    if isinstance(bundle.get("input"), Mapping):
        bundle = bundle.inner("input")
    names = sorted((k for k in bundle.data if SCENARIO.fullmatch(k)), key=lambda k: int(k.split("_")[1]))
    if not names:
        return [Scene("", _case(bundle, Gathered(site)))]
    shared = {k: v for k, v in bundle.data.items() if k not in names}
    return [Scene(name, _case(_scenario(bundle, name, shared), Gathered(site))) for name in names]


def _scenario(bundle: Fields, name: str, shared: Mapping[str, Any]) -> Fields:
    """A scenario is a log by node, or a bundle of its own; what stands beside the scenarios holds for each."""
    value = bundle.get(name)
    own = value if isinstance(value, Mapping) and value.keys() & READ else {"log": value}
    return Fields({**shared, **own}, bundle.path(name))


# --- one case -------------------------------------------------------------------------------------------------------


@dataclass
class _Logs:
    """Which nodes a bundle has logs of."""

    nodes: list[str] = field(default_factory=list)
    empty: set[str] = field(default_factory=set)


def _case(bundle: Fields, gathered: Gathered) -> Case:
    ranks = rank_nodes(bundle.get("rank_hosts"), bundle.path("rank_hosts"))
    addresses = _addresses(bundle)
    by_node = [key for part in ("log", "dmesg") if isinstance(given := bundle.get(part), Mapping) for key in given]
    gathered.hosts = (*bundle.hosts("nodes_of_job"), *ranks.values(), *addresses.values(), *by_node)
    attempts = past.attempts(bundle)
    kernel = _kernel(bundle, gathered)
    logs = _job_logs(bundle, gathered)
    gathered.job(attempts.log)
    notes.sentences(bundle, gathered)
    past.history(bundle, gathered)
    facts = slurm_side.node_facts(bundle, gathered)
    slurm = slurm_side.job_fact(bundle, gathered)
    finished, step = notes.hook(bundle)
    healthy, alike = notes.equals(bundle)
    named = dict.fromkeys([*bundle.hosts("nodes_of_job"), *ranks.values(), *logs.nodes, *kernel, *sorted(healthy)])
    last_step = bundle.whole("last_step")
    return Case(
        evidence=tuple(gathered.evidence),
        rank_nodes=ranks,
        addresses=addresses,
        nodes=tuple(named),
        node_facts=facts,
        slurm=slurm,
        unreadable=frozenset({"kernel"} if notes.unreadable(bundle, "dmesg") else ()),
        read_clean=frozenset(kernel),
        finished=finished,
        last_step=next((s for s in (last_step, attempts.last_step, step) if s is not None), None),
        still_training=notes.still_training(bundle),
        cancelled_by_user=slurm_side.cancelled(bundle),
        worked_before=bundle.flag("prior_success_on_same_nodes"),
        healthy_nodes=healthy | frozenset(logs.empty),
        attempts=attempts.before,
        same_before=attempts.same_before,
        trusted=True,
        facts=_facts(bundle, alike),
    )


def _kernel(bundle: Fields, gathered: Gathered) -> list[str]:
    """Nodes whose kernel log is there."""
    value = bundle.get("dmesg")
    if value is None or notes.unreadable(bundle, "dmesg"):
        return []
    if not isinstance(value, Mapping):
        only = bundle.hosts("nodes_of_job")
        gathered.kernel(lines_of(value, bundle.path("dmesg")), only[0] if len(only) == 1 else None)
        return list(only) if len(only) == 1 else []
    read: list[str] = []
    for node, lines in value.items():
        if isinstance(lines, str) and "\n" not in lines and notes.NO.search(lines):
            continue  # "not readable": unknown
        gathered.kernel(lines_of(lines, f"{bundle.path('dmesg')}.{node}"), node)
        read.append(node)
    return read


def _job_logs(bundle: Fields, gathered: Gathered) -> _Logs:
    value, logs = bundle.get("log"), _Logs()
    if not isinstance(value, Mapping):
        gathered.job(lines_of(value, bundle.path("log")))
        return logs
    for name, given in value.items():
        lines = lines_of(given, f"{bundle.path('log')}.{name}")
        rank = RANK.fullmatch(name)
        gathered.job(lines, None if rank else name, int(rank[1]) if rank else None)
        if rank is None:
            logs.nodes.append(name)
            if not any(line.strip() for line in lines):
                logs.empty.add(name)
    return logs


def _addresses(bundle: Fields) -> dict[str, str]:
    hosts = bundle.inner("ip_hosts")
    for address, node in hosts.data.items():
        if not isinstance(node, str):
            raise BundleError(f"{hosts.where}.{address}", "expected a node name")
    return dict(hosts.data)


def _facts(bundle: Fields, alike: bool) -> dict[str, Scalar]:
    facts: dict[str, Scalar] = {
        key: value
        for key, value in bundle.data.items()
        if key not in READ and isinstance(value, str | int | float | bool)
    }
    if alike:
        facts["others_alike"] = True
    if who := notes.whom_it_follows(bundle):
        facts["follows"] = who
    for key in ("history", "dmesg", "heartbeats", "other_nodes"):
        if isinstance(text := bundle.get(key), str):
            facts[key] = text
    return facts
