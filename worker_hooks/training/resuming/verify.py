"""Is the resumed run the same run? Compared before the first step, and again with each replayed step's loss."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from worker_hooks.protocol.generations import read_rank_file
from worker_hooks.protocol.manifest import RankFile
from worker_hooks.protocol.messages import MessageError
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.errors import VerificationFailed
from worker_hooks.training.resuming.candidates import Source
from worker_hooks.training.resuming.live_digests import NAMED, compare
from worker_hooks.training.resuming.swapped import SWAPPED, exchanged, stored_average
from worker_hooks.training.state import ddp, fingerprint
from worker_hooks.training.state.tracked import Parts, Tracked

PASS, DEGRADED, RESHARDED, FAIL = "PASS", "DEGRADED", "RESHARDED", "FAIL"
LR_TOLERANCE = 1e-6
_OF_THE_JOB = ("epoch", "order_epoch", "consumed", "sampler_seed")


@dataclass(frozen=True)
class Check:
    name: str
    outcome: str
    expected: Any
    actual: Any
    code: str | None = None
    why: str | None = None

    def record(self) -> dict[str, Any]:
        """`code` names a mistake that is known by itself; `why` is for people."""
        said = {"name": self.name, "outcome": self.outcome, "expected": self.expected, "actual": self.actual}
        return said | {key: text for key, text in (("code", self.code), ("why", self.why)) if text is not None}


def worst(checks: list[Check]) -> str:
    outcomes = {check.outcome for check in checks}
    return next((outcome for outcome in (FAIL, RESHARDED, DEGRADED) if outcome in outcomes), PASS)


def equal(name: str, expected: Any, actual: Any) -> Check:
    return Check(name, PASS if expected == actual else FAIL, expected, actual)


# --- before the first step --------------------------------------------------------------------------------------


def state_checks(
    source: Source, tracked: Tracked, coordinator: Coordinator, *, step: int, same_layout: bool
) -> list[Check]:
    """Step, parameters (with buffers), optimizer, learning rate, each further object under its own name, and what the
    ranks should have in common. Collective."""
    world_size = coordinator.world_size
    saved, algorithm = source.own.fingerprint, source.manifest.digest_algorithm
    parts = tracked.collect(world_size)
    now = fingerprint.summary(tracked, parts, step=step, world_size=world_size, algorithm=algorithm)
    objects = fingerprint.object_digests({name: parts.values[name] for name in tracked.others}, parts.own, algorithm)
    tensors = _Tensors(source, parts)
    of_model = {key for key in tensors.names if key.partition("/")[0] in tracked.models}
    of_optimizer = {key for key in tracked.optimizer_tensors() if not key.endswith(".lr")}
    return [
        equal("step", saved["step"], step),
        _without_average(tensors.check("parameters", of_model), tensors.average(tracked, parts.values, step)),
        tensors.check("optimizer", of_optimizer, settings=_settings(source, tracked, parts, same_layout=same_layout)),
        learning_rate_check(saved["learning_rate"], now["learning_rate"]),
        *(
            _object_check(name, (digest, objects.get(name)), (source.own.state.get(name), parts.values.get(name)))
            for name, digest in saved["objects"].items()
        ),
        *replicas_check(source, coordinator),
    ]


def _object_check(name: str, digests: tuple[str, str | None], values: tuple[Any, Any]) -> Check:
    """Each pair: saved, now. Its plain values tell a reader what it is that differs."""
    check = equal(name, *digests)
    saved, now = values
    if check.outcome == PASS or not (isinstance(saved, dict) and isinstance(now, dict)):
        return check
    differing = [key for key in sorted({**saved, **now}) if saved.get(key) != now.get(key)]
    said = [f"{key}: {_short(saved, key)} at the save, {_short(now, key)} now" for key in differing[:NAMED]]
    return replace(check, why=", ".join(said) or "its tensors")


def _short(values: dict[str, Any], key: str) -> str:
    return str(values[key])[:40] if key in values else "nothing"


def _settings(source: Source, tracked: Tracked, parts: Parts, *, same_layout: bool) -> tuple[str, str]:
    """(saved, now) of the optimizers' plain values. On another layout their tensors are described otherwise. Version 1
    of a fingerprint has none of its own: what the rank file holds stands for it."""
    algorithm = source.manifest.digest_algorithm
    then, now = ({name: values[name] for name in tracked.optimizers} for values in (source.own.state, parts.values))
    digest = fingerprint.settings_digest if same_layout else fingerprint.placeless_settings_digest
    saved = source.own.fingerprint.get("settings") if same_layout else None
    return saved or digest(then, algorithm), digest(now, algorithm)


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
        if found.differing:
            moved = exchanged(found, self._live, self._reader.digests(), self._keys)
            if moved:
                return Check(name, FAIL, expected, actual, SWAPPED[name], _some(moved))
            return Check(name, FAIL, expected, actual, why=_some(found.differing))
        same = expected.get("values") == actual.get("values")
        return Check(name, PASS if same else FAIL, expected, actual, why=None if same else "its plain values")

    def average(self, tracked: Tracked, values: dict[str, Any], step: int) -> tuple[str, str] | None:
        """The model whose stored parameters are equal to those of an average, and that one."""
        return stored_average(tracked, values, self._reader.digests(), self._keys, step)


def _some(found: list[str]) -> str:
    more = len(found) - NAMED
    return ", ".join(found[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _without_average(check: Check, average: tuple[str, str] | None) -> Check:
    """R14: a checkpoint may hold its averaged weights as the model's, and every bit of that is loaded."""
    if check.outcome != PASS or average is None:
        return check
    why = "the weights of {} are those of {}: saved while the average stood in for them".format(*average)
    return Check(check.name, DEGRADED, check.expected, check.actual, SWAPPED[check.name], why)


def learning_rate_check(saved: list[str], now: list[str]) -> Check:
    """R10. Of every group, before the first step: a scheduler that was built anew shows here, not in the loss later."""
    if saved == now:
        return Check("learning_rate", PASS, saved, now)
    before, after = ([float.fromhex(rate) for rate in rates] for rates in (saved, now))
    why = rates_said(before, after, "at the save", "now")
    if why is not None:
        return Check("learning_rate", FAIL, saved, now, "LR_JUMP", why)
    return Check("learning_rate", DEGRADED, saved, now)


def rates_said(before: list[float], after: list[float], then: str, now: str) -> str | None:
    """The rates that jumped, in words; None if none did. A rate that is no number has jumped."""
    if len(before) != len(after):
        return f"{len(before)} groups {then}, {len(after)} {now}"
    pairs = zip(before, after, strict=True)
    jumped = [pair for pair in pairs if not math.isclose(*pair, rel_tol=LR_TOLERANCE)]
    return ", ".join(f"{one:.6g} {then}, {other:.6g} {now}" for one, other in jumped[:NAMED]) or None


def position_check(saved: dict[str, Any], actual: dict[str, Any], *, same_ranks: bool) -> Check:
    """Every part of the position that both sides know; without the ids of the next batch it cannot be a PASS.

    On another number of ranks only what the whole job consumed can be the same.
    """
    keys = [key for key in saved if key in actual and (same_ranks or key in _OF_THE_JOB)]
    check = equal("data_position", {key: saved[key] for key in keys}, {key: actual[key] for key in keys})
    if check.outcome == FAIL:  # R01
        return replace(check, code="DATA_ORDER", why=", ".join(key for key in keys if saved[key] != actual[key]))
    if "next_ids_digest" not in keys:
        return Check(check.name, DEGRADED, check.expected, check.actual)
    return check


def random_check(source: Source, actual: dict[str, str], world_size: int) -> Check:
    """This rank's own generators, against this rank's own digests: another rank's state would pass a check of rank 0
    alone. On another number of ranks no rank goes on where one was."""
    saved = {key: value for key, value in source.own.random.items() if key != "state"}
    if source.manifest.world_size != world_size:
        return Check("random_state", DEGRADED, None, actual, why="not exact: the number of ranks changed")
    wrong = [key for key, value in saved.items() if actual.get(key) != value]
    now = {key: actual.get(key) for key in saved}
    if wrong:
        return Check("random_state", FAIL, saved, now, "RNG_MISMATCH", ", ".join(wrong))
    return Check("random_state", PASS, saved, now)


def layout_check(source: Source, tracked: Tracked, world_size: int, *, exact: bool) -> Check:
    """World size, meshes, thread count, versions, and the order in which DDP will sum. Another world size comes here
    only by a stated policy; the same ranks on another mesh are another layout as well, in every mode."""
    saved = source.own.run if source.exact else source.first.run
    expected = {**saved["layout"], "threads": saved["threads"], "versions": saved["versions"]}
    actual = {
        **_also_in(saved["layout"], fingerprint.layout(tracked, world_size)),
        "threads": torch.get_num_threads(),
        "versions": _also_in(saved["versions"], fingerprint.versions()),
    }
    if expected["world_size"] != world_size:
        return Check("layout", RESHARDED, expected, actual, why=f"{expected['world_size']} ranks, now {world_size}")
    if moved := rearranged(expected, actual):
        return Check("layout", RESHARDED, expected, actual, why=moved)
    if exact and (expected != actual or not _orders_known(tracked, actual["buckets"])):
        return Check("layout", DEGRADED, expected, actual)
    return Check("layout", PASS, expected, actual)


def config_check(source: Source, now: str | None) -> list[Check]:
    """Only told: what a script makes of its configuration shows in other checks, or is a change that was meant."""
    saved = source.manifest.config_digest
    if saved is None and now is None:
        return []
    why = None if saved == now else "the run's config is another one than at the save"
    return [Check("config", PASS if why is None else DEGRADED, saved, now, why=why)]


def rearranged(saved: dict[str, Any], now: dict[str, Any]) -> str | None:
    """How the same ranks hold the state in another way than at the save, in words; None if they do not."""
    for key in ("meshes", "placements", "mesh_ranks"):
        if key in saved and saved[key] != now[key]:
            before, after = _arrangement(saved), _arrangement(now)
            return f"{before}, now {after}" if before != after else f"{before}, with the ranks in other places"
    if len(saved["buckets"]) != len(now["buckets"]):
        return f"{_arrangement(saved)}, now {_arrangement(now)}"
    return None


def _arrangement(layout: dict[str, Any]) -> str:
    """Such as `mesh [2, 2] (dp, tp): 12 x shard(0), replicate`; without the rank's own place."""
    said = [f"mesh {mesh['shape']}{_named(mesh['names'])}" for mesh in layout["meshes"]]
    kinds = layout.get("placements", {}).get("kinds", {})
    said += [f"{count} x {how}" for how, count in kinds.items()]
    if layout["buckets"]:
        said.append("DDP")
    return "; ".join(said) or "every rank by itself"


def _named(names: list[str] | None) -> str:
    return f" ({', '.join(names)})" if names else ""


def replicas_check(source: Source, coordinator: Coordinator) -> list[Check]:
    """Had the ranks diverged when they saved what one of them stores for all? Each brings the samples of the ranks it
    stands for; nothing to say where there are none (one rank, version 1 of a fingerprint). Collective."""
    others = range(coordinator.rank, source.manifest.world_size, coordinator.world_size)
    files = [file for other in others if (file := _rank_file(source, other)) is not None]
    keys = ("replicas", "replicated_shards")
    mine = [[found.rank, {key: found.fingerprint.get(key) for key in keys}] for found in files]
    samples = {rank: sample for said in coordinator.gather(mine) for rank, sample in said}
    if not any(value for sample in samples.values() for value in sample.values()):
        return []
    apart = fingerprint.diverged(samples)
    if apart:
        why = f"{' and '.join(f'ranks {ranks}' for ranks in apart)} had diverged at the save, one's values are loaded"
        return [Check("replicas", DEGRADED, None, apart, "REPLICAS_DIVERGED", why)]
    return [Check("replicas", PASS, None, None)]


def _rank_file(source: Source, rank: int) -> RankFile | None:
    """None where it is broken or gone: of what came from nodes the index was not read, and no resume needs it."""
    try:
        return source.own if rank == source.own.rank else read_rank_file(source.folder, rank)
    except (MessageError, FileNotFoundError):
        return None


def _also_in(saved: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Without what an older checkpoint does not say."""
    return {key: value for key, value in now.items() if key in saved}


def _orders_known(tracked: Tracked, buckets: dict[str, Any]) -> bool:
    replicas = ddp.replicas(tracked.models)
    return all(buckets[path] is not None for path, replica in replicas.items() if not replica.find_unused_parameters)


def demand(checks: list[Check], coordinator: Coordinator, step: int) -> None:
    """Agree with all ranks; raises VerificationFailed on every rank if any check failed on any. Collective."""
    failed = coordinator.gather([[c.name, c.code, c.why] for c in checks if c.outcome == FAIL])
    parts: dict[str, list[int]] = {}
    details: dict[str, None] = {}
    for rank, found in enumerate(failed):
        for name, code, why in found:
            parts.setdefault(name, []).append(rank)
            if code or why:
                details[f"{name}: {' '.join(filter(None, (code, why)))}"] = None
    if parts:
        said = ", ".join(f"{name} (ranks {ranks})" for name, ranks in parts.items())
        more = f" [{'; '.join(list(details)[:NAMED])}]" if details else ""
        raise VerificationFailed(
            f"relume: verification failed before the first step after step {step}: {said} differ from the checkpoint"
            f"{more}; not training on",
            tuple(parts),
        )
