"""Is the resumed run the same run? Compared before the first step, and again with each replayed step's loss."""

from dataclasses import dataclass
from typing import Any

import torch

from worker_hooks.training import ddp, fingerprint
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.errors import VerificationFailed
from worker_hooks.training.live_digests import compare
from worker_hooks.training.resume import Source
from worker_hooks.training.tracked import Parts, Tracked

PASS, DEGRADED, FAIL = "PASS", "DEGRADED", "FAIL"
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Check:
    name: str
    outcome: str
    expected: Any
    actual: Any

    def record(self) -> dict[str, Any]:
        return {"name": self.name, "outcome": self.outcome, "expected": self.expected, "actual": self.actual}


def worst(checks: list[Check]) -> str:
    outcomes = {check.outcome for check in checks}
    return next((outcome for outcome in (FAIL, DEGRADED) if outcome in outcomes), PASS)


def equal(name: str, expected: Any, actual: Any) -> Check:
    return Check(name, PASS if expected == actual else FAIL, expected, actual)


# --- before the first step --------------------------------------------------------------------------------------


def state_checks(source: Source, tracked: Tracked, *, step: int, world_size: int) -> list[Check]:
    """Step, parameters (with buffers), optimizer, learning rate, and each further object under its own name."""
    saved, algorithm = source.own.fingerprint, source.manifest.digest_algorithm
    parts = tracked.collect(world_size)
    now = fingerprint.summary(tracked, parts, step=step, world_size=world_size, algorithm=algorithm)
    objects = fingerprint.object_digests({name: parts.values[name] for name in tracked.others}, parts.own, algorithm)
    tensors = _Tensors(source, parts)
    of_model = {key for key in tensors.names if key.partition("/")[0] in tracked.models}
    of_optimizer = {key for key in tracked.optimizer_tensors() if not key.endswith(".lr")}
    return [
        equal("step", saved["step"], step),
        tensors.check("parameters", of_model),
        tensors.check("optimizer", of_optimizer, settings=(_saved_settings(source, tracked), now["settings"])),
        equal("learning_rate", saved["learning_rate"], now["learning_rate"]),
        *(equal(name, digest, objects.get(name)) for name, digest in saved["objects"].items()),
    ]


def _saved_settings(source: Source, tracked: Tracked) -> str:
    """Version 1 of a fingerprint has none of its own: what the rank file holds stands for it."""
    saved: str | None = source.own.fingerprint.get("settings")
    optimizers = {name: source.own.state[name] for name in tracked.optimizers}
    return saved or fingerprint.settings_digest(optimizers, source.manifest.digest_algorithm)


class _Tensors:
    """This rank's tensors as they are now, beside what is stored."""

    def __init__(self, source: Source, parts: Parts) -> None:
        self._reader = source.reader()
        self._keys = source.keys(self._reader)
        self._live = {**parts.shared, **parts.own}
        self.names = set(self._live)

    def check(self, name: str, names: set[str], *, settings: tuple[Any, Any] | None = None) -> Check:
        """Equal to the bit, and so are the plain values' digests in `settings` (expected, actual)."""
        found = compare(self._reader, self._keys, {key: self._live[key] for key in sorted(names)})
        expected, actual = found.summary()
        if settings is not None:
            expected["values"], actual["values"] = settings
        same = not found.differing and expected.get("values") == actual.get("values")
        return Check(name, PASS if same else FAIL, expected, actual)


def position_check(saved: dict[str, Any], actual: dict[str, Any], *, same_ranks: bool) -> Check:
    """Every part of the position that both sides know; without the ids of the next batch it cannot be a PASS.

    On another number of ranks only what the whole job consumed can be the same.
    """
    keys = [key for key in saved if key in actual and (same_ranks or key in ("epoch", "consumed", "sampler_seed"))]
    check = equal("data_position", {key: saved[key] for key in keys}, {key: actual[key] for key in keys})
    if check.outcome == PASS and "next_ids_digest" not in keys:
        return Check(check.name, DEGRADED, check.expected, check.actual)
    return check


def random_check(source: Source, actual: dict[str, str]) -> Check:
    """This rank's own generators. A rank that did not exist at the save has none."""
    saved = {key: value for key, value in source.own.random.items() if key != "state"}
    if not source.exact:
        return Check("random_state", DEGRADED, None, actual)
    return equal("random_state", saved, {key: actual.get(key) for key in saved})


def layout_check(source: Source, tracked: Tracked, world_size: int, *, elastic: bool, exact: bool) -> Check:
    """World size, thread count, versions, and the order in which DDP will sum."""
    saved = source.first.run
    expected = {**saved["layout"], "threads": saved["threads"], "versions": saved["versions"]}
    actual = {
        **_also_in(saved["layout"], fingerprint.layout(tracked, world_size)),
        "threads": torch.get_num_threads(),
        "versions": _also_in(saved["versions"], fingerprint.versions()),
    }
    if expected["world_size"] != world_size:
        return Check("layout", DEGRADED if elastic else FAIL, expected, actual)
    if exact and (expected != actual or not _orders_known(tracked, actual["buckets"])):
        return Check("layout", DEGRADED, expected, actual)
    return Check("layout", PASS, expected, actual)


def _also_in(saved: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Without what an older checkpoint does not say."""
    return {key: value for key, value in now.items() if key in saved}


def _orders_known(tracked: Tracked, buckets: dict[str, Any]) -> bool:
    replicas = ddp.replicas(tracked.models)
    return all(buckets[path] is not None for path, replica in replicas.items() if not replica.find_unused_parameters)


def demand(checks: list[Check], coordinator: Coordinator, step: int) -> None:
    """Agree with all ranks; raises VerificationFailed on every rank if any check failed on any. Collective."""
    failed = coordinator.gather([check.name for check in checks if check.outcome == FAIL])
    parts: dict[str, list[int]] = {}
    for rank, names in enumerate(failed):
        for name in names:
            parts.setdefault(name, []).append(rank)
    if parts:
        said = ", ".join(f"{name} (ranks {ranks})" for name, ranks in parts.items())
        raise VerificationFailed(
            f"relume: verification failed before the first step after step {step}: {said} differ from the checkpoint; "
            "not training on",
            tuple(parts),
        )


# --- replayed steps ---------------------------------------------------------------------------------------------


class Replay:
    """This rank's recorded losses beyond the checkpoint: each must come again."""

    def __init__(self, recorded: dict[int, str], *, exact: bool) -> None:
        self._recorded = recorded
        self._exact = exact

    def check(self, step: int, loss: float) -> Check | None:
        """None where nothing was recorded for this step."""
        recorded = self._recorded.pop(step, None)
        if recorded is None:
            return None
        expected = float.fromhex(recorded)
        same = expected.hex() == loss.hex()
        if same or self._exact:
            return Check("loss", PASS if same else FAIL, recorded, loss.hex())
        near = abs(expected - loss) <= TOLERANCE * max(abs(expected), abs(loss))
        return Check("loss", DEGRADED if near else FAIL, recorded, loss.hex())


def demand_replay(check: Check, step: int, rank: int) -> None:
    if check.outcome == FAIL:
        raise VerificationFailed(
            f"relume: verification failed: rank {rank}'s loss of replayed step {step} is {check.actual}, recorded was "
            f"{check.expected}; not training on",
            (check.name,),
        )
