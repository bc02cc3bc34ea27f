"""What stays true is said when it begins and now and then while it lasts, not at every round."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from worker_hooks.signs.sign import Sign

AGAIN_S = 900.0
# Each of these tells of something that happened between two readings, and is said every time.
EVENTS = frozenset({"ib.link_downed", "gpu.ecc_uncorrected"})
PLACES = ("device", "port", "counter", "pci", "gpu_uuid", "action", "reasons")


@dataclass
class Standing:
    """Of one reader. A condition that was gone for a round is new when it comes back."""

    _said: dict[tuple[object, ...], float] = field(default_factory=dict)

    def due(self, signs: Iterable[Sign], now: float) -> list[Sign]:
        signs = list(signs)
        keys = {_key(sign) for sign in signs}
        self._said = {key: at for key, at in self._said.items() if key in keys}
        return [sign for sign in signs if self._is_due(sign, now)]

    def _is_due(self, sign: Sign, now: float) -> bool:
        key = _key(sign)
        said = self._said.get(key)
        if sign.code not in EVENTS and said is not None and now - said < AGAIN_S:
            return False
        self._said[key] = now
        return True


def _key(sign: Sign) -> tuple[object, ...]:
    return (sign.code, *(sign.attrs.get(name) for name in PLACES))
