"""Which GPUs this job step may use on this node, by UUID: on a shared node it says whose GPU a fault has hit.

Nobody asks CUDA: that would take a context on every GPU. The environment says which GPUs, by name or by number; numbers
and shortened names are looked up in `nvidia-smi -L`, which runs in the agent's own cgroup and lists what that may see.
`CUDA_VISIBLE_DEVICES` numbers that list in CUDA's order; Slurm's own variables number the node's GPUs, so they say how
many there are and no more. Whatever does not fit together is unknown, (), never a guess.

An instance (MIG) is told together with the GPU that it is part of, unless its name holds that already: a fault of the
GPU hits all of its instances.

Run on recorded answers and a stand-in of the command (test_agent_gpus.py); not on a GPU.
"""

import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

VISIBLE = "CUDA_VISIBLE_DEVICES"
SHARES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL")  # the step's own before the job's
LIMIT_S = 20.0  # without persistence mode the driver initialises each GPU first
KILLED_S = 2.0
TRIES = 3
RETRY_S = 30.0
MAX_BYTES = 1 << 18

_HEX = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_GPU_LINE = re.compile(rf"GPU (?P<index>\d+): (?P<model>.+) \(UUID: (?P<uuid>GPU-{_HEX})\)")
_INSTANCE_LINE = re.compile(rf"\s+MIG \S+\s+Device\s+\d+: \(UUID: (?P<uuid>MIG-(?:{_HEX}|GPU-{_HEX}/\d+/\d+))\)")
# Names that say by themselves which GPU is meant: those of whole GPUs, and of instances as older drivers spell them.
_COMPLETE = re.compile(rf"GPU-{_HEX}|MIG-GPU-{_HEX}/\d+/\d+", re.IGNORECASE)
_NAME = re.compile(r"(?:GPU|MIG)-[0-9a-f/gpu-]+", re.IGNORECASE)

Ask = Callable[[], str | None]


@dataclass(frozen=True)
class Gpu:
    """One line of the list and the instances below it."""

    uuid: str
    model: str
    instances: tuple[str, ...] = ()


# --- what it means ------------------------------------------------------------------------------------------------


def read_list(text: str) -> tuple[Gpu, ...]:
    """The answer of `nvidia-smi -L`. One line that is not understood (a GPU that is lost) and the whole list is
    unknown, (): what comes after it may be numbered otherwise."""
    found: list[Gpu] = []
    for line in text.splitlines():
        gpu, instance = _GPU_LINE.fullmatch(line.rstrip()), _INSTANCE_LINE.fullmatch(line.rstrip())
        if gpu is not None and int(gpu["index"]) == len(found):
            found.append(Gpu(gpu["uuid"], gpu["model"]))
        elif instance is not None and found:
            last = found[-1]
            found[-1] = Gpu(last.uuid, last.model, (*last.instances, instance["uuid"]))
        elif line.strip():
            return ()
    return tuple(found)


def named(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What the environment tells by complete names alone; () where that does not suffice."""
    names = _items(environ.get(VISIBLE, ""))
    return tuple(names) if names and all(_COMPLETE.fullmatch(name) for name in names) else ()


def held(environ: Mapping[str, str], listed: Sequence[Gpu]) -> tuple[str, ...]:
    """UUIDs of the GPUs, and of the instances with their GPU, that a process with this environment may use; `listed`
    is what this cgroup sees. () unknown."""
    visible, share = environ.get(VISIBLE), _share(environ)
    if visible is None:
        return _whole_share(listed, share)
    items = _items(visible)
    if not items or len(set(items)) != len(items):
        return ()
    if all(_NAME.fullmatch(item) for item in items):
        return _of_names(items, listed)
    if all(_is_number(item) for item in items):
        return _of_numbers([int(item) for item in items], listed, share, environ)
    return ()


def _whole_share(listed: Sequence[Gpu], share: frozenset[int] | None) -> tuple[str, ...]:
    """Nothing narrows it down but the cgroup: if that shows no more than the share, it shows the share."""
    confined = share is not None and len(listed) <= len(share)
    return tuple(gpu.uuid for gpu in listed) if confined and not _divided(listed) else ()


def _of_names(names: Sequence[str], listed: Sequence[Gpu]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for name in names:
        one = _of_name(name, listed)
        if not one:
            return ()
        found.update(dict.fromkeys(one))
    return tuple(found)


def _of_name(name: str, listed: Sequence[Gpu]) -> tuple[str, ...]:
    """CUDA takes any beginning of a name that is nobody else's."""
    if _COMPLETE.fullmatch(name):
        return (name,)
    begins = name.casefold()
    found: list[tuple[str, ...]] = [(gpu.uuid,) for gpu in listed if gpu.uuid.casefold().startswith(begins)]
    found += [_instance(gpu, mig) for gpu in listed for mig in gpu.instances if mig.casefold().startswith(begins)]
    return found[0] if len(found) == 1 else ()


def _instance(gpu: Gpu, mig: str) -> tuple[str, ...]:
    return (mig,) if _COMPLETE.fullmatch(mig) else (gpu.uuid, mig)


def _of_numbers(
    numbers: Sequence[int], listed: Sequence[Gpu], share: frozenset[int] | None, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Numbers of CUDA's, which counts what it sees and takes instances into account in its own way."""
    if _divided(listed) or any(number >= len(listed) for number in numbers):
        return ()
    everything = len(numbers) == len(listed)
    if not everything and not _in_cudas_order(listed, environ):
        return ()
    confined = share is not None and len(listed) <= len(share)
    if share is not None and not confined and not share.issuperset(numbers):
        return ()  # numbered as in a cgroup, and yet the whole node is seen
    return tuple(listed[number].uuid for number in sorted(numbers))


def _in_cudas_order(listed: Sequence[Gpu], environ: Mapping[str, str]) -> bool:
    """The list is in the order of addresses; CUDA's puts the fastest model first, unless it is told otherwise."""
    return environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.model for gpu in listed}) == 1


def _divided(listed: Sequence[Gpu]) -> bool:
    return any(gpu.instances for gpu in listed)


def _share(environ: Mapping[str, str]) -> frozenset[int] | None:
    """The numbers that Slurm gave, None where it gave none or gave something else than numbers."""
    for name in SHARES:
        items = _items(environ.get(name, ""))
        if items:
            return frozenset(int(item) for item in items) if all(_is_number(item) for item in items) else None
    return None


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


# --- asking -------------------------------------------------------------------------------------------------------


class NvidiaSmi:
    """`nvidia-smi -L`, bounded. One that a driver in trouble keeps from dying is waited for no longer, and none is
    started beside it."""

    def __init__(self, environ: Mapping[str, str], limit_s: float = LIMIT_S) -> None:
        self._path = environ.get("PATH")
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._over = False

    def __call__(self) -> str | None:
        """Its output; None if it is not there, failed, said too much or took too long. Never raises."""
        command = shutil.which("nvidia-smi", path=self._path)
        if command is None or self._over or (self._process is not None and self._process.poll() is None):
            return None
        with suppress(OSError, ValueError), tempfile.TemporaryFile() as answer:
            process = subprocess.Popen(
                [command, "-L"], stdin=subprocess.DEVNULL, stdout=answer, stderr=subprocess.DEVNULL
            )
            self._process = process
            if self._over:  # said while it was being started
                process.kill()
            if self._ended(process) != 0:
                return None
            answer.seek(0)
            said = answer.read(MAX_BYTES + 1)
            return said.decode("utf-8", "replace") if len(said) <= MAX_BYTES else None
        return None

    def end(self) -> None:
        """From any thread: nothing of it outlives the agent, and none is started any more. Does not wait."""
        self._over = True
        process = self._process
        if process is not None:
            process.kill()

    def _ended(self, process: subprocess.Popen[bytes]) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(self._limit_s)
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_S)
        return None


def look(
    environ: Mapping[str, str], ask: Ask, pause: Callable[[float], object] = time.sleep, tries: int = TRIES
) -> tuple[str, ...]:
    """() when it is still unknown after so many tries. The command is not started where names alone suffice, nor where
    nobody speaks of GPUs."""
    found = named(environ)
    if found or not any(environ.get(name, "").strip() for name in (VISIBLE, *SHARES)):
        return found
    for left in reversed(range(tries)):
        answer = ask()
        listed = read_list(answer) if answer is not None else ()
        if listed:
            return held(environ, listed)
        if left:
            pause(RETRY_S)
    return ()


def look_aside(environ: Mapping[str, str], keep: Callable[[tuple[str, ...]], None], ask: Ask) -> None:
    """On a thread of its own: nobody waits for a driver. `keep` is called once, if anything was learned."""

    def work() -> None:
        found = look(environ, ask)
        if found:
            keep(found)

    threading.Thread(target=work, name="relume-gpus", daemon=True).start()
