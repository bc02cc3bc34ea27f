"""An incident bundle on disk: a JSON file, or a folder of logs, kernel logs and flight recorder dumps."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from controller.bundles import notes
from controller.bundles.fields import BundleError
from controller.bundles.gather import Gathered
from controller.bundles.read import RANK, Scene, Site, read_case
from controller.decision.evidence import JOB, SENSOR, Case
from worker_hooks.signs.log import LogReader

DUMP = re.compile(r".*_(\d{1,7})")
CHUNK = 1 << 20
JSON_BYTES = 64 << 20
PARTS = "case.json, flight-recorder/_dump_<rank>, kernel/<node>.log, job/*.log"


def read_path(path: Path, site: Site = tuple) -> list[Scene]:
    """A JSON file or a folder. Raises BundleError that names file and key."""
    return _folder(path, site) if path.is_dir() else read_case(_json(path), str(path), site)


def _json(path: Path) -> object:
    try:
        with path.open("rb") as file:  # by what is read: a pipe or a device has no size
            data = file.read(JSON_BYTES + 1)
        if len(data) > JSON_BYTES:
            raise BundleError(str(path), f"larger than {JSON_BYTES >> 20} MiB; put logs into a folder: job/*.log")
        return json.loads(data)
    except OSError as error:
        raise BundleError(str(path), error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise BundleError(str(path), f"not JSON: {error}; a log belongs into a folder: job/<name>.log") from error


def _folder(path: Path, site: Site) -> list[Scene]:
    case_file = path / "case.json"
    logs, kernels = sorted(path.glob("job/*.log")), sorted(path.glob("kernel/*.log"))
    dumps = sorted(p for p in path.glob("flight-recorder/*") if DUMP.fullmatch(p.name) and p.is_file())
    if not (case_file.exists() or logs or kernels or dumps):
        raise BundleError(str(path), f"holds none of {PARTS}")
    scenes = (
        read_case(_json(case_file), str(case_file), site) if case_file.exists() else [Scene("", Case(trusted=True))]
    )
    return [Scene(scene.name, _with_files(scene.case, logs, kernels, dumps, site)) for scene in scenes]


def _with_files(case: Case, logs: list[Path], kernels: list[Path], dumps: list[Path], site: Site) -> Case:
    gathered = Gathered(site, list(case.evidence))
    for file in kernels:
        _read_log(gathered, LogReader("kernel", node=file.stem, whole=True), file, SENSOR)
    known = {*case.nodes, *(file.stem for file in kernels)}
    for file in logs:
        rank = RANK.fullmatch(file.stem)
        node = file.stem if file.stem in known or notes.hosts_in(file.stem) == (file.stem,) else None
        reader = LogReader("job", node=node, rank=int(rank[1]) if rank else None, extra=site(), whole=True)
        _read_log(gathered, reader, file, JOB)
    for file in dumps:
        gathered.dump(file)
    return replace(
        case,
        evidence=tuple(gathered.evidence),
        nodes=tuple(dict.fromkeys([*case.nodes, *(file.stem for file in kernels)])),
        read_clean=case.read_clean | {file.stem for file in kernels},
    )


def _read_log(gathered: Gathered, reader: LogReader, file: Path, origin: str) -> None:
    for chunk in _chunks(file):
        gathered.take(reader.feed(chunk), origin)
    gathered.take(reader.close(), origin)


def _chunks(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                yield chunk
    except OSError as error:
        raise BundleError(str(file), error.strerror or str(error)) from error
