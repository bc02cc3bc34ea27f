"""NVIDIA's management library through `pynvml` (the `sensor` extra), behind one method. Read only.

Run against a stand-in of the module in tests; not on a GPU. No library, no driver: a fact, not an error.
"""

import importlib
from collections.abc import Callable
from typing import Any

from worker_hooks.signs.nvml import GpuReading, GpuReadings, address

RECOVERY_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
UNCORRECTED, VOLATILE, AGGREGATE = 1, 0, 1
# Codes of the library, which are part of its ABI.
NOT_SUPPORTED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 3, 9, 12, 15, 16
ABSENT_CODES = (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND)


class Nvml:
    """The library stays open between readings: opening it costs more than reading."""

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._load = load
        self._module: Any = None

    def read(self) -> GpuReadings | None:
        """None: no library or no driver here. Raises whatever the library raises for its own failures."""
        try:
            lib = self._opened()
        except ImportError:
            return None
        except Exception as error:
            if _code(error) in ABSENT_CODES:
                return None
            raise
        count = int(lib.nvmlDeviceGetCount())
        return GpuReadings(count, tuple(self._gpu(lib, index) for index in range(count)))

    def _opened(self) -> Any:
        if self._module is None:
            module = self._load()
            module.nvmlInit()
            self._module = module
        return self._module

    def _gpu(self, lib: Any, index: int) -> GpuReading:
        uuid = pci = None
        try:
            handle = lib.nvmlDeviceGetHandleByIndex(index)
            uuid = _told(lambda: _text(lib.nvmlDeviceGetUUID(handle)))
            pci = _told(lambda: address(_text(lib.nvmlDeviceGetPciInfo(handle).busId)))
            rows = _told(lambda: lib.nvmlDeviceGetRemappedRows(handle))
            return GpuReading(
                index,
                uuid,
                pci,
                ecc_volatile=_told(lambda: int(lib.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, VOLATILE))),
                ecc_aggregate=_told(lambda: int(lib.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, AGGREGATE))),
                remap_pending=None if rows is None else bool(rows[2]),
                remap_failed=None if rows is None else bool(rows[3]),
                recovery=_told(lambda: _field(lib, handle)),
                throttle=_told(lambda: int(lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle))),
                busy_percent=_told(lambda: int(lib.nvmlDeviceGetUtilizationRates(handle).gpu)),
            )
        except Exception as error:
            if _code(error) in (GPU_IS_LOST, RESET_REQUIRED):
                return GpuReading(index, uuid, pci, unreadable=str(error))
            raise


def _told(ask: Callable[[], Any]) -> Any:
    """None where this GPU or this driver does not tell it; a lost GPU, and failures of the library, go on up."""
    try:
        return ask()
    except AttributeError:  # an older pynvml or driver
        return None
    except Exception as error:
        if _code(error) == NOT_SUPPORTED:
            return None
        raise


def _field(lib: Any, handle: Any) -> int | None:
    (value,) = lib.nvmlDeviceGetFieldValues(handle, [RECOVERY_FIELD])
    return int(value.value.uiVal) if value.nvmlReturn == 0 else None


def _code(error: Exception) -> int | None:
    return getattr(error, "value", None)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
