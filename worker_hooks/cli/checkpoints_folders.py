"""Folders that others wrote as checkpoints: Hugging Face's Trainer, torch.distributed.checkpoint, plain shards."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker_hooks.cli.checkpoints_files import SUFFIXES, FileFacts, look_at_file, outline_of, step_in, step_in_name
from worker_hooks.cli.checkpoints_parts import PARTS, Contents, contents, contents_of, part_of
from worker_hooks.protocol.folder_state import bytes_of, said
from worker_hooks.protocol.regular import read_small
from worker_hooks.signs.pickle_outline import Opaque

MARKS = ("_COMMITTED", "_SUCCESS", ".complete", "_CHECKPOINT_COMPLETE")
_LEFTOVERS = (".tmp", ".part", ".incomplete")
_MODEL_FILES = re.compile(r"(pytorch_model|model|adapter_model)(-\d+-of-\d+)?\.(bin|safetensors)")
_RNG_FILES = re.compile(r"rng_state(_\d+)?\.pth")
_NUMBERED = re.compile(r"(.*?)(\d{1,9})(\D*)")
_FILES_READ = 64
_METADATA_MAX = 64 << 20


@dataclass(frozen=True)
class Foreign:
    """One file or folder. `contents` None: not readable, `notes` say why. `mark`: the writer's own sign that it ended,
    None where no folder beside it has one either. `usable`: nothing is known that forbids loading it."""

    path: Path
    kind: str
    step: int | None
    step_from: str | None
    bytes: int
    modified_at: float
    contents: Contents | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    mark: bool | None = None

    @property
    def usable(self) -> bool:
        return not self.problems and self.mark is not False


def look_at_folder(path: Path) -> Foreign | None:
    """None for a folder without a trace of a checkpoint. Raises OSError."""
    names = sorted(entry.name for entry in os.scandir(path))
    if ".metadata" in names or any(name.endswith(".distcp") for name in names):
        return _dcp(path, names)
    if "trainer_state.json" in names or ("optimizer.pt" in names and any(map(_MODEL_FILES.fullmatch, names))):
        return _hugging_face(path, names)
    shards = [name for name in names if Path(name).suffix in SUFFIXES or name.endswith(_LEFTOVERS)]
    mark = any(name in MARKS for name in names)
    if not shards and not mark:
        return None
    return _shards(path, shards, mark)


def _hugging_face(path: Path, names: list[str]) -> Foreign:
    problems, notes = [], []
    step = None
    if "trainer_state.json" in names:
        try:
            state = json.loads(read_small(path / "trainer_state.json"))
            step = step_in(state) if isinstance(state, dict) else None
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"trainer_state.json: {said(error)}")
    ranks = [name for name in names if _RNG_FILES.fullmatch(name)]
    held = {
        "model": any(_MODEL_FILES.fullmatch(name) for name in names),
        "optimizer": "optimizer.pt" in names or "optimizer.bin" in names,
        "scheduler": "scheduler.pt" in names,
        "scaler": "scaler.pt" in names,
        "rng": bool(ranks),
        "rng of each rank": len(ranks) > 1,
        "step": step is not None,
    }
    problems += _bad_files(path, [name for name in names if Path(name).suffix in SUFFIXES])
    notes.append("the data position is found again by running through the loader up to the step")
    if ranks == ["rng_state.pth"]:
        notes.append("one random state: enough only if there was one rank")
    source = "trainer_state.json"
    if step is None:
        step, source = step_in_name(path.name), "its name"
    parts = contents(part for part in PARTS if held.get(part))
    return made(path, "Hugging Face Trainer", step, source, parts, tuple(problems), tuple(notes))


def _dcp(path: Path, names: list[str]) -> Foreign:
    """The metadata name every key and how long each shard must be at least."""
    step = step_in_name(path.name)
    source = None if step is None else "its name"
    if ".metadata" not in names:
        return made(path, "DCP", step, source, problems=(".metadata is missing: the save did not end",))
    if (path / ".metadata").stat().st_size > _METADATA_MAX:
        return made(path, "DCP", step, source, notes=(f".metadata is larger than {_METADATA_MAX >> 20} MiB",))
    outline, why = outline_of(read_small(path / ".metadata"))
    state = outline.state if isinstance(outline, Opaque) else None
    keys = state.get("state_dict_metadata") if isinstance(state, dict) else None
    if not isinstance(state, dict) or not isinstance(keys, dict):
        return made(path, "DCP", step, source, problems=(why or ".metadata is not DCP's",))
    problems = [*_short_shards(path, state.get("storage_data")), *_bad_files(path, [])]
    return made(path, "DCP", step, source, _parts_of_dotted(keys), tuple(problems))


def _short_shards(path: Path, places: object) -> Iterator[str]:
    wanted: dict[str, int] = defaultdict(int)
    for place in places.values() if isinstance(places, dict) else ():
        found = place.state if isinstance(place, Opaque) else None
        if isinstance(found, dict):
            name, offset, length = (found.get(key) for key in ("relative_path", "offset", "length"))
            if isinstance(name, str) and isinstance(offset, int) and isinstance(length, int):
                wanted[name] = max(wanted[name], offset + length)
    for name, least in sorted(wanted.items()):
        if "/" in name:
            continue  # never opened: a name must not lead out of its folder
        try:
            size = (path / name).stat().st_size
        except FileNotFoundError:
            yield f"{name} is missing"
            continue
        if size < least:
            yield f"{name} has {size} bytes, at least {least} were written"


def _parts_of_dotted(keys: dict[object, object]) -> Contents:
    """Keys such as `app.optimizer.state.0`: the first two components may name the part."""
    present, tops = set(), {}
    for key in keys:
        components = str(key).replace("/", ".").split(".")
        parts = [part for name in components[:2] if (part := part_of(name))]
        present |= set(parts[:1])
        if not parts:
            tops[components[0]] = True
    if not present and tops:
        return contents(["model"])
    found = contents_of(tops)
    return contents(present, (), found.unknown)


def _shards(path: Path, names: list[str], mark: bool) -> Foreign:
    """A folder of shard files of no known layout."""
    whole = [name for name in names if not name.endswith(_LEFTOVERS)]
    problems = [f"{name}: left by a write that did not end" for name in names if name.endswith(_LEFTOVERS)]
    problems += [*_bad_files(path, whole), *_shorter_than_siblings(path, whole)]
    step = step_in_name(path.name)
    held: Contents | None = None
    if len(whole) == 1:
        facts = _facts(path / whole[0])
        held = contents_of_file(facts) if facts else None
        step = facts.step if facts is not None and facts.step is not None else step
    notes = (() if held else (f"{len(whole)} shards of a layout that is not known here",)) + _holes(whole)
    return made(path, "folder of shards", step, "its name", held, tuple(problems), notes, mark or None)


def _facts(path: Path) -> FileFacts | None:
    """None for what cannot be read: one such file is a problem with a name (`_bad_files`), not the end of the look."""
    try:
        return look_at_file(path)
    except OSError:
        return None


def _bad_files(path: Path, names: list[str]) -> Iterator[str]:
    """Empty files, and files that cannot be whole. Of many, the first ones are opened, all are measured."""
    for index, name in enumerate(names):
        try:
            if (path / name).stat().st_size == 0:
                yield f"{name}: zero bytes"
            elif index < _FILES_READ and (problem := look_at_file(path / name).problem):
                yield f"{name}: {problem}"
        except OSError as error:
            yield f"{name}: {said(error)}"


def _shorter_than_siblings(path: Path, names: list[str]) -> Iterator[str]:
    """`shard_0.pt` beside `shard_1.pt`: files of one pattern should be equally long, unless they tell their length."""
    groups: dict[str, dict[str, int]] = defaultdict(dict)
    for name in names:
        with suppress(OSError):
            groups[re.sub(r"\d+", "#", name)][name] = (path / name).stat().st_size
    for sizes in groups.values():
        longest = max(sizes.values())
        for name, size in sizes.items():
            facts = _facts(path / name) if 0 < size < longest else None
            if facts is not None and facts.kind == "file":
                yield f"{name}: {size} bytes, the longest of its kind has {longest}"


def _holes(names: list[str]) -> tuple[str, ...]:
    """`shard_0.pt` and `shard_2.pt`: whether there ever was a `shard_1.pt` nobody can tell, so it is only said."""
    groups: dict[str, set[int]] = defaultdict(set)
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            groups[f"{match[1]}#{match[3]}"].add(int(match[2]))
    return tuple(
        f"{pattern}: {len(numbers)} of the numbers 0 to {max(numbers)}"
        for pattern, numbers in sorted(groups.items())
        if len(numbers) <= max(numbers)
    )


def contents_of_file(facts: FileFacts) -> Contents | None:
    """None where the keys cannot be told."""
    if facts.keys is None:
        return None
    if facts.kind == "Lightning":
        return contents_of({key: value for key, value in facts.keys.items() if key != "loops"})
    return contents_of(facts.keys)


def made(
    path: Path,
    kind: str,
    step: int | None = None,
    step_from: str | None = None,
    held: Contents | None = None,
    problems: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    mark: bool | None = None,
) -> Foreign:
    """With its size and time, as far as those can be read."""
    try:
        modified, size = path.stat().st_mtime, bytes_of(path) if path.is_dir() else path.stat().st_size
    except OSError:
        modified, size = 0.0, 0
    source = step_from if step is not None else None
    return Foreign(path, kind, step, source, size, modified, held, problems, notes, mark)
