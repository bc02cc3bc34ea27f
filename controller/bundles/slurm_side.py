"""What a bundle says of Slurm: `sinfo`, `node`, `sacct`, `slurm`, `slurm_state`."""

import re
from collections.abc import Mapping
from typing import Any

from controller.bundles.fields import BundleError, Fields
from controller.bundles.gather import Gathered
from controller.decision.facts import NodeFact, SlurmJobFact
from controller.slurm import hostlist, states

_REASON = re.compile(r"\[(?P<user>[^@\]]+)@[^\]]*\]\s*$")
JOB_KEYS = {"state": "State", "jobstate": "State", "job_state": "State", "reason": "Reason", "restarts": "Restarts"}
JOB_KEYS |= {"exitcode": "ExitCode", "exit_code": "ExitCode", "jobid": "JobId", "job_id": "JobId", "requeue": "Requeue"}


def node_facts(bundle: Fields, gathered: Gathered) -> dict[str, NodeFact]:
    """By name; each node that is not simply at work or idle is evidence too. `node` may leave its name out: it is then
    the one that Slurm's own lines name."""
    found: dict[str, NodeFact] = {}
    for line in bundle.lines("sinfo"):
        found |= _sinfo(line, bundle.path("sinfo"))
    if bundle.get("node") is not None:
        found |= _node(bundle, gathered)
    for name, fact in found.items():
        if fact.down or fact.flags & {"DRAIN", "FAIL", "NOT_RESPONDING"} or fact.reason:
            state = "+".join([fact.base, *sorted(fact.flags)])
            raw = f"{name} {state} {fact.reason}".strip()
            attrs = {"state": state, "reason": fact.reason, "reason_user": fact.reason_user}
            gathered.note("slurm.node_state", raw, "slurm", name, **attrs)
    return found


def _sinfo(line: str, where: str) -> dict[str, NodeFact]:
    """`gn04 down* Not responding [slurm@2026-03-05T03:12:40]`. A heading, or an empty line, is none."""
    words = line.split(None, 2)
    if len(words) < 2 or words[0].upper() in ("NODELIST", "PARTITION", "HOSTNAMES"):
        return {}
    try:
        names = hostlist.expand(words[0])
    except ValueError as error:
        raise BundleError(where, str(error)) from None
    return {name: _fact(name, words[1], words[2] if len(words) > 2 else "") for name in names}


def _node(bundle: Fields, gathered: Gathered) -> dict[str, NodeFact]:
    value = bundle.get("node")
    if isinstance(value, str):
        return {}
    node = Fields.of(value, bundle.path("node"))
    name = node.text("NodeName") or node.text("Name") or node.text("name") or _only_host(bundle, gathered)
    state = node.text("State") or node.text("state")
    if not name or not state:
        return {}
    return {name: _fact(name, state, node.text("Reason") or node.text("reason"))}


def _only_host(bundle: Fields, gathered: Gathered) -> str:
    named = {e.node or str(e.attrs.get("host", "")) for e in gathered.evidence if e.layer == "slurm"} - {""}
    names = named or set(bundle.hosts("nodes_of_job"))
    return next(iter(names)) if len(names) == 1 else ""


def _fact(name: str, state: str, reason: str) -> NodeFact:
    parsed = states.parse_node(state)
    user = _REASON.search(reason)
    text = reason[: user.start()].strip() if user else reason.strip()
    return NodeFact(name, parsed.base, frozenset(parsed.flags), text, user["user"] if user else "")


def job_fact(bundle: Fields, gathered: Gathered) -> SlurmJobFact | None:
    """The job's record, from whichever key has one; its state is evidence too."""
    known: dict[str, Any] = {}
    for key in ("sacct", "slurm"):
        known |= _record(bundle, key)
    if state := bundle.text("slurm_state"):
        known.setdefault("State", state)
    if not isinstance(known.get("State"), str) or not known["State"].strip():
        return None
    parsed = states.parse_job(known["State"])
    restarts = str(known.get("Restarts", ""))
    count = int(restarts) if restarts.isascii() and restarts.isdigit() and len(restarts) < 10 else 0
    reason = str(known.get("Reason") or "")
    raw = " ".join(f"{key}={value}" for key, value in known.items())
    state = "REQUEUED" if "REQUEUED" in parsed.flags else parsed.base
    gathered.note("slurm.job_state", raw, "slurm", state=state, reason=reason, restarts=count)
    return SlurmJobFact(
        str(known.get("JobId") or ""),
        parsed.base,
        frozenset(parsed.flags),
        reason,
        count,
        requeue=str(known.get("Requeue", 1)).lower() not in ("0", "false", "no"),
    )


def cancelled(bundle: Fields) -> bool:
    """Whether accounting says that somebody cancelled the job: `CANCELLED by 1001`."""
    spellings = [_record(bundle, key).get("State") for key in ("sacct", "slurm")] + [bundle.text("slurm_state")]
    return any(isinstance(state, str) and re.match(r"CANCELLED by \d", state) for state in spellings)


def _record(bundle: Fields, key: str) -> dict[str, Any]:
    value = bundle.get(key)
    if isinstance(value, list):
        value = value[-1] if value else None
    if value is None:
        return {}
    if isinstance(value, str):
        return {"State": value}
    if not isinstance(value, Mapping):
        raise BundleError(bundle.path(key), 'expected a record such as {"State": "NODE_FAIL"}')
    return {JOB_KEYS.get(str(name).lower(), str(name)): item for name, item in value.items()}
