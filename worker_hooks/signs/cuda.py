"""What CUDA, its libraries and NVML say in a job's log: error texts, out of memory, device asserts."""

import re

from worker_hooks.signs.found import Found, short, whole

# Whether a text speaks of CUDA at all; the texts behind it are too plain to be taken alone.
_CONTEXT = re.compile(
    r"(?:CUDA|Cuda|cuda|HIP) (?:runtime |driver |kernel |unknown )?[Ee]rror|cudaGetDeviceCount|Cuda failure|CUDA "
    r"failure|cudaError\w*|CUDA_ERROR_\w+|"
    r"hipError\w*|THCudaCheck FAIL|(?:CUDA|HIP) out of memory|CUDA initialization|CUDA driver|No CUDA GPUs|"
    r"no CUDA-capable device|NVIDIA driver|Failed to initialize NVML|NVML(?: \w+)* (?:failure|"
    r"error|Error)|NVMLError\w*|CU(?:BLAS|DNN|SPARSE|FFT)_\w+|"
    r"cuDNN error|cuBLAS error|cublas\w* failed|device-side assert|Unable to determine the device handle"
)
_ADVICE = re.compile(r"Search for `(?:cuda|hip)Error|kernel errors might be|CUDA_LAUNCH_BLOCKING|TORCH_USE_CUDA_DSA")
_NUMBER = re.compile(
    r"(?:runtime error|driver error|Cuda failure|CUDA failure|error code:?|error=|Error "
    r"code:?) ?\(?(\d{1,4})\b|\((\d{1,3})\)"
)

# Code, the runtime's own number (None: it has several or none), text.
_KINDS: tuple[tuple[str, int | None, re.Pattern[str]], ...] = tuple(
    (code, number, re.compile(form))
    for code, number, form in (
        ("cuda.ecc", 214, r"[Uu]ncorrectable ECC|ECC_UNCORRECTABLE|ECCUncorrectable|\bECC error"),
        (
            "cuda.nvlink",
            220,
            r"NVLink error|[Nn]vlinkUncorrectable|NVLINK_UNCORRECTABLE|over nvlink or a hardware error",
        ),
        ("cuda.illegal_access", 700, r"illegal memory access|illegal address|ILLEGAL_ADDRESS|IllegalAddress"),
        ("cuda.device_assert", 710, r"device-side assert|ERROR_ASSERT\b|ErrorAssert\b"),
        ("cuda.misaligned", 716, r"misaligned address|MISALIGNED_ADDRESS|MisalignedAddress"),
        ("cuda.launch_failed", 719, r"unspecified launch failure|LAUNCH_FAILED|LaunchFailure\b"),
        ("cuda.launch_failed", 702, r"launch timed out and was terminated|LAUNCH_TIMEOUT|LaunchTimeout"),
        (
            "cuda.out_of_memory",
            2,
            r"out of memory|OUT_OF_MEMORY|MemoryAllocation\b|CUBLAS_STATUS_ALLOC_FAILED|"
            r"CUDNN_STATUS_ALLOC_FAILED",
        ),
        ("cuda.driver", None, r"[Dd]river/library version mismatch|LibRmVersionMismatch"),
        (
            "cuda.driver",
            35,
            r"driver version is insufficient|driver on your system is too old|INSUFFICIENT_DRIVER|"
            r"InsufficientDriver",
        ),
        (
            "cuda.driver",
            803,
            r"system has unsupported display driver|system driver mismatch|SystemDriverMismatch|"
            r"SYSTEM_DRIVER_MISMATCH",
        ),
        ("cuda.driver", 804, r"forward compatibility was attempted"),
        ("cuda.driver", 222, r"unsupported (?:PTX version|toolchain)"),
        (
            "cuda.no_device",
            100,
            r"no CUDA-capable device|No CUDA GPUs are available|NO_DEVICE\b|ErrorNoDevice|no NVIDIA "
            r"driver on your system|NVML: (?:GPU is lost|No supported GPUs)|No devices were found",
        ),
        ("cuda.no_device", 101, r"invalid device ordinal|INVALID_DEVICE\b|InvalidDevice\b"),
        (
            "cuda.unavailable",
            46,
            r"devices? (?:is|are|is/are) busy or unavailable|DevicesUnavailable|DEVICE_UNAVAILABLE",
        ),
        ("cuda.unavailable", 802, r"system not yet initialized|SystemNotReady|SYSTEM_NOT_READY"),
        ("cuda.unavailable", 3, r"initialization error|driver initialization failed|CUDA_ERROR_NOT_INITIALIZED"),
        ("cuda.unavailable", 999, r"[Uu]nknown [Ee]rror|ERROR_UNKNOWN|ErrorUnknown"),
        ("cuda.error", 714, r"hardware stack error"),
        ("cuda.error", 715, r"illegal instruction"),
        ("cuda.error", 209, r"no kernel image is available"),
        ("cuda.error", 400, r"invalid resource handle"),
        ("cuda.error", 9, r"invalid configuration argument"),
        ("cuda.error", 1, r"invalid argument"),
    )
)
_GENERIC = re.compile(
    r"(?:CUDA|Cuda|cuda|HIP) (?:runtime |driver )?[Ee]rror(?: \(\d+\))? ?:|Cuda failure|"
    r"CUDA_ERROR_\w+|CU(?:BLAS|DNN|SPARSE|FFT)_STATUS_(?!SUCCESS)\w+|"
    r"cuDNN error|THCudaCheck FAIL|Failed to initialize NVML|Unable to determine the device handle"
)
_GPU = re.compile(r"\bGPU (\d{1,3})(?: has a total capaci?ty|;)")
# What the kernel itself prints, beside the thread that failed.
_ASSERTION = re.compile(
    r"(?:block: \[\d+,\s*\d+,\s*\d+\]|thread: \[\d+).{0,80}?Assertion (?P<text>.+?) failed|"
    r"\.cuh?:\d+.{0,200}?Assertion (?P<other>.+?) failed"
)


def cuda_reason(text: str) -> Found | None:
    """What CUDA says in `text`, whoever repeats it. None where it says nothing."""
    if "Assertion" in text and (asserted := _ASSERTION.search(text)):
        return Found("cuda.assertion", {"text": short(asserted["text"] or asserted["other"]).strip("`'\"")})
    context = _CONTEXT.search(text)
    if context is None or _ADVICE.search(text):
        return None
    for code, number, form in _KINDS:
        if form.search(text):
            return _found(code, number, text, context.start())
    return _found("cuda.error", None, text, context.start()) if _GENERIC.search(text) else None


def _found(code: str, number: int | None, text: str, start: int) -> Found:
    attrs: dict[str, str | int | float | bool] = {"text": short(text[start:])}
    if code == "cuda.out_of_memory":
        if gpu := _GPU.search(text):
            attrs["gpu"] = int(gpu[1])
        return Found(code, attrs)
    said = _NUMBER.search(text)
    number = whole(said[1] or said[2]) if said else number
    if number is not None:
        attrs["number"] = number
    return Found(code, attrs)
