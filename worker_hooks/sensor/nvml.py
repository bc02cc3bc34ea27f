"""NVIDIA's management library through `pynvml` (the `sensor` extra), behind one method. Read only.

Run against a stand-in of the module in tests (test_sensor_nvml.py); not on a GPU. No library, no driver: a
fact, not an error.
"""

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from worker_hooks.signs.nvml import GpuReading, GpuReadings, address

RECOVERY_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
UNCORRECTED, VOLATILE, AGGREGATE = 1, 0, 1
# Codes of the library, which are part of its ABI.
NOT_SUPPORTED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND = 3, 9, 12
FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 13, 15, 16
ABSENT_CODES = (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND)
UNREADABLE_CODES = (GPU_IS_LOST, RESET_REQUIRED)
SILENT_CODES = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)


class Nvml:
    """The library stays open between readings: opening it costs more than reading."""

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._load = load
        self._module: Any = None

    def read(self) -> GpuReadings | None:
        """None: no library or no driver here. Raises whatever the library raises when it cannot even count; it is
        opened anew then, because a driver that was loaded again does not know who had opened the old one."""
        try:
            lib = self._opened()
        except ImportError:
            return None
        except Exception as error:
            if _code(error) in ABSENT_CODES:
                return None
            raise
        try:
            count = int(lib.nvmlDeviceGetCount())
        except Exception:
            self._module = None
            with suppress(Exception):
                lib.nvmlShutdown()
            raise
        return GpuReadings(count, tuple(_gpu(lib, index) for index in range(count)))

    def _opened(self) -> Any:
        if self._module is None:
            module = self._load()
            module.nvmlInit()
            self._module = module
        return self._module


class _Questions:
    """To one GPU. `trouble`: the first failure of the library itself, which is no word about the GPU."""

    def __init__(self) -> None:
        self.trouble: str | None = None

    def ask(self, question: Callable[[], Any]) -> Any:
        """None where this GPU or this driver does not tell it, or fails to; a GPU that is lost goes on up."""
        try:
            return question()
        except AttributeError:  # an older pynvml
            return None
        except Exception as error:
            if _code(error) in UNREADABLE_CODES:
                raise
            if _code(error) not in SILENT_CODES:
                self.trouble = self.trouble or str(error)
            return None


def _gpu(lib: Any, index: int) -> GpuReading:
    known = GpuReading(index)
    questions = _Questions()
    ask = questions.ask
    try:
        handle = ask(lambda: lib.nvmlDeviceGetHandleByIndex(index))
        if handle is None:
            return replace(known, trouble=questions.trouble)
        known = replace(known, uuid=ask(lambda: _text(lib.nvmlDeviceGetUUID(handle))))
        known = replace(known, pci=ask(lambda: address(_text(lib.nvmlDeviceGetPciInfo(handle).busId))))
        rows = ask(lambda: lib.nvmlDeviceGetRemappedRows(handle))
        return replace(
            known,
            ecc_volatile=ask(lambda: int(lib.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, VOLATILE))),
            ecc_aggregate=ask(lambda: int(lib.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, AGGREGATE))),
            remap_pending=None if rows is None else bool(rows[2]),
            remap_failed=None if rows is None else bool(rows[3]),
            recovery=ask(lambda: _field(lib, handle)),
            throttle=ask(lambda: int(lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle))),
            busy_percent=ask(lambda: int(lib.nvmlDeviceGetUtilizationRates(handle).gpu)),
            trouble=questions.trouble,
        )
    except Exception as error:
        if _code(error) in UNREADABLE_CODES:
            return replace(known, unreadable=str(error))
        raise


def _field(lib: Any, handle: Any) -> int | None:
    (value,) = lib.nvmlDeviceGetFieldValues(handle, [RECOVERY_FIELD])
    return int(value.value.uiVal) if value.nvmlReturn == 0 else None


def _code(error: Exception) -> int | None:
    return getattr(error, "value", None)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
