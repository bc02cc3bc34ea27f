"""Python values as JSON and back, exactly, without pickle; tensors inside are taken out under a key.

Kinds that JSON lacks are objects with a `$` key: tuple, dict with other keys than text, bytes, non-finite float,
complex, tensor. A value of any other type is refused with its path: better no checkpoint than one that comes back as
something else.
"""

import base64
import math
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import torch

from worker_hooks.training.errors import CheckpointError

Tensors = dict[str, torch.Tensor]


def encode(value: Any, path: str, tensors: Tensors | None) -> Any:
    """JSON for `value`; tensors inside go to `tensors` under their path, or are refused where that is None."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, torch.Tensor):
        if tensors is None:
            raise CheckpointError(f"{path}: a tensor inside another value cannot be stored here")
        tensors[path] = value.detach()
        return {"$": "tensor", "key": path}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$": "float", "text": repr(float(value))}
    if isinstance(value, bytes | bytearray):
        return {"$": "bytes", "base64": base64.b64encode(value).decode()}
    if type(value) in (list, tuple) and all(type(item) is int for item in value):
        # The state of Python's generator is 625 of them, at every save.
        return list(value) if type(value) is list else {"$": "tuple", "items": list(value)}
    if isinstance(value, list):
        return [encode(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]
    if type(value) is tuple:
        return {"$": "tuple", "items": [encode(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]}
    if type(value) in (dict, OrderedDict, defaultdict, Counter):
        return _encode_dict(value, path, tensors)
    return _encode_foreign(value, path, tensors)


def _encode_dict(value: dict[Any, Any], path: str, tensors: Tensors | None) -> Any:
    if type(value) is not Counter and all(isinstance(key, str) for key in value) and "$" not in value:
        return {key: encode(item, f"{path}.{key}", tensors) for key, item in value.items()}
    pairs = [[encode(key, path, tensors), encode(item, f"{path}.{key}", tensors)] for key, item in value.items()]
    return {"$": "counter" if type(value) is Counter else "dict", "pairs": pairs}


def _encode_foreign(value: Any, path: str, tensors: Tensors | None) -> Any:
    """numpy's scalars and arrays, if somebody else imported numpy: this file never does."""
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "dtype"):
        if value.shape == ():
            return encode(value.item(), path, tensors)
        return {"$": "array", "tensor": encode(torch.from_numpy(value.copy()), path, tensors)}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise CheckpointError(f"{path}: a value of type {kind} cannot be stored (give plain values and tensors)")


def decode(data: Any, tensors: Tensors) -> Any:
    """The value that `encode` was given. Raises CheckpointError for a kind it does not know."""
    if isinstance(data, list):
        return [decode(item, tensors) for item in data]
    if not isinstance(data, dict):
        return data
    kind = data.get("$")
    if kind is None:
        return {key: decode(item, tensors) for key, item in data.items()}
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise CheckpointError(f"unknown kind of value {kind!r} in a checkpoint")
    return decoder(data, tensors)


_DECODERS: dict[str, Any] = {
    "tensor": lambda data, tensors: tensors[data["key"]],
    "array": lambda data, tensors: tensors[data["tensor"]["key"]].numpy(),
    "float": lambda data, tensors: float(data["text"]),
    "bytes": lambda data, tensors: base64.b64decode(data["base64"]),
    "tuple": lambda data, tensors: tuple(decode(item, tensors) for item in data["items"]),
    "dict": lambda data, tensors: {decode(k, tensors): decode(v, tensors) for k, v in data["pairs"]},
    "counter": lambda data, tensors: Counter({decode(k, tensors): decode(v, tensors) for k, v in data["pairs"]}),
}
