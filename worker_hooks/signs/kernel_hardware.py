"""The host's hardware in the kernel log: PCIe errors (AER, DPC, hotplug), memory (EDAC, machine checks), heat, and a
GPU that the driver could not start."""

import re
from collections.abc import Mapping

from worker_hooks.signs.rows import Row, RowReader
from worker_hooks.signs.sign import Scalar
from worker_hooks.signs.xid import pci_address

_ADDRESS = r"(?P<address>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"
_UNCORRECTED = 1 << 61  # bits of a machine check's status
_CONTEXT_CORRUPT = 1 << 57


def _pci(match: re.Match[str]) -> Mapping[str, Scalar | None]:
    return {"pci": pci_address(match["address"]), "address": None}


def _bank(match: re.Match[str]) -> Mapping[str, Scalar | None]:
    status = int(match["status"], 16)
    fatal = bool(match["exception"]) or bool(status & _UNCORRECTED and status & _CONTEXT_CORRUPT)
    return {"fatal": fatal, "status": None, "exception": None}


def _fatal(match: re.Match[str]) -> Mapping[str, Scalar | None]:
    return {"fatal": True}


def _harmless(match: re.Match[str]) -> Mapping[str, Scalar | None]:
    return {"fatal": False}


def _aer(severity: str) -> re.Pattern[str]:
    """The line of the root port, which may name the source, and the line of the device itself."""
    device, root = _ADDRESS.replace("address", "device"), _ADDRESS.replace("address", "root")
    return re.compile(
        rf"{root}: AER: (?:Multiple )?(?:{severity}) error (?:message )?received(?:(?: from|:) *{_ADDRESS})?"
        rf"|{device}[^:]*: (?:AER: )?PCIe Bus Error: severity=(?:{severity})(?=,)"
    )


def _aer_pci(match: re.Match[str]) -> Mapping[str, Scalar | None]:
    named = match["address"] or match["device"] or match["root"]
    return {"pci": pci_address(named), "address": None, "device": None, "root": None}


_FATAL = r"Uncorrect(?:ed|able) \(Fatal\)"
_NONFATAL = r"Uncorrect(?:ed|able) \(Non-Fatal\)"
_CORRECTED = r"Correct(?:ed|able)"

ROWS = (
    # --- PCIe
    Row("rror received", "pcie.fatal", _aer(_FATAL), True, _aer_pci),
    Row("rror received", "pcie.nonfatal", _aer(_NONFATAL), True, _aer_pci),
    Row("rror received", "pcie.corrected", _aer(_CORRECTED), True, _aer_pci),
    Row("rror message received", "pcie.fatal", _aer(_FATAL), True, _aer_pci),
    Row("rror message received", "pcie.nonfatal", _aer(_NONFATAL), True, _aer_pci),
    Row("rror message received", "pcie.corrected", _aer(_CORRECTED), True, _aer_pci),
    Row("PCIe Bus Error", "pcie.fatal", _aer(_FATAL), True, _aer_pci),
    Row("PCIe Bus Error", "pcie.nonfatal", _aer(_NONFATAL), True, _aer_pci),
    Row("PCIe Bus Error", "pcie.corrected", _aer(_CORRECTED), True, _aer_pci),
    Row("DPC: ", "pcie.fatal", re.compile(rf"{_ADDRESS}.*DPC: containment event"), True, _pci),
    Row("DPC: ", "pcie.fatal", re.compile(rf"{_ADDRESS}.*DPC: unmasked uncorrectable error detected"), True, _pci),
    Row("Slot(", "pcie.fatal", re.compile(rf"{_ADDRESS}.*Slot\([^)]*\): (?:Link Down|Card not present)"), True, _pci),
    # --- memory
    Row("EDAC ", "memory.uncorrected", re.compile(r"EDAC .*\bMC#?\d+: (?:\d+ )?UE\b"), True),
    Row("EDAC ", "memory.corrected", re.compile(r"EDAC .*\bMC#?\d+: (?:\d+ )?CE\b"), True),
    Row("EDAC ", "memory.uncorrected", re.compile(r"EDAC .*\bUE row \d+"), True),
    Row("EDAC ", "memory.corrected", re.compile(r"EDAC .*\bCE row \d+"), True),
    Row("emory failure: 0x", "memory.uncorrected", re.compile(r"Memory failure: 0x[0-9a-f]+: "), True),
    Row("emory error in", "memory.uncorrected", re.compile(r"Uncorrected hardware memory error in"), True),
    Row("hardware memory corruption", "memory.uncorrected", re.compile(r"hardware memory corruption"), True),
    # --- machine checks
    Row(
        "Machine Check",
        "cpu.machine_check",
        re.compile(r"Machine Check(?P<exception> Exception)?: +\w+ Bank \d+: (?P<status>[0-9a-fA-F]{1,16})"),
        True,
        _bank,
    ),
    Row("atal machine check", "cpu.machine_check", re.compile(r"[Ff]atal machine check"), True, _fatal),
    Row("atal Machine check", "cpu.machine_check", re.compile(r"[Ff]atal Machine check"), True, _fatal),
    Row(
        "Hardware Error]",
        "cpu.machine_check",
        re.compile(
            r"\[Hardware Error\]: *(?:System Fatal error|event severity: fatal|Uncorrected, software containable)"
        ),
        True,
        _fatal,
    ),
    Row(
        "Hardware Error]",
        "cpu.machine_check",
        re.compile(
            r"\[Hardware Error\]: *(?:Machine check events logged|Corrected error, no action|"
            r"event severity: (?:corrected|recoverable)|(?:Uncorrected|Deferred)[, ])"
        ),
        True,
        _harmless,
    ),
    # --- heat
    Row(
        "above threshold",
        "kernel.thermal",
        re.compile(r"CPU(?P<cpu>\d+): (?:Core|Package) temperature (?:is )?above threshold"),
    ),
    Row("ritical temperature reached", "kernel.thermal", re.compile(r"[Cc]ritical temperature reached")),
    # --- a GPU's driver
    Row(
        "RmInitAdapter failed",
        "gpu.init_failed",
        re.compile(rf"NVRM:.*GPU {_ADDRESS}: RmInitAdapter failed"),
        True,
        _pci,
    ),
    Row("RmInitAdapter failed", "gpu.init_failed", re.compile(r"NVRM: .*RmInitAdapter failed"), True),
    Row(
        "rm_init_adapter",
        "gpu.init_failed",
        re.compile(rf"NVRM: GPU {_ADDRESS}: rm_init_adapter\S* failed"),
        True,
        _pci,
    ),
    Row("rm_init_adapter", "gpu.init_failed", re.compile(r"NVRM: rm_init_adapter\S* failed"), True),
    Row("NVIDIA probe routine failed", "gpu.init_failed", re.compile(r"NVRM: The NVIDIA probe routine failed"), True),
    Row(
        "NVIDIA devices were initialized", "gpu.init_failed", re.compile(r"NVRM: None of the NVIDIA devices were"), True
    ),
    Row(
        "nvidia: probe of ",
        "gpu.init_failed",
        re.compile(rf"nvidia: probe of {_ADDRESS} failed with error"),
        True,
        _pci,
    ),
    Row(
        "driver nvidia failed",
        "gpu.init_failed",
        re.compile(rf"nvidia {_ADDRESS}: probe with driver nvidia failed"),
        True,
        _pci,
    ),
    Row("NVRM: API mismatch", "gpu.driver_error", re.compile(r"NVRM: API mismatch"), True),
    Row("GPU is probably locked", "gpu.driver_error", re.compile(r"GPU is probably locked"), True),
    Row(
        "likely needs to be reset",
        "gpu.driver_error",
        re.compile(rf"NVRM: .*GPU at PCI:{_ADDRESS}.*likely needs to be reset"),
        True,
        _pci,
    ),
)


def hardware_reader() -> RowReader:
    return RowReader(ROWS)
