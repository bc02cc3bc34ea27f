"""NVIDIA's library as the sensor asks it, on a stand-in of its module: what it tells, and every way it has not to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.worker_hooks.fake_host import FakeHost
from worker_hooks.sensor.counters import Gpus, NvmlReader
from worker_hooks.sensor.nvml import Nvml
from worker_hooks.sensor.rounds import Partly, Round
from worker_hooks.signs.nvml import GpuReading, GpuReadings
from worker_hooks.signs.sign import Sign

pytestmark = pytest.mark.pure

NOT_SUPPORTED, NO_DRIVER, NO_LIBRARY, NO_FUNCTION, LOST, RESET, UNKNOWN = 3, 9, 12, 13, 15, 16, 999


class NVMLError(Exception):
    """As the module's own: a code in `value`, words when printed."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return {LOST: "GPU is lost", RESET: "GPU requires reset", UNKNOWN: "Unknown Error"}.get(self.value, "?")


@dataclass
class Card:
    """`fails`: {function: code}. The bus address comes as bytes, as older versions of the module give it."""

    number: int
    volatile: int = 0
    aggregate: int = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    recovery: int = 0
    throttle: int = 0
    busy: int = 0
    fails: dict[str, int] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        return f"GPU-{self.number}"


class Module:
    """The part of `pynvml` that is used. `without`: functions that this version does not have."""

    def __init__(self, *cards: Card, without: tuple[str, ...] = ()) -> None:
        self.cards = cards
        self.without = without
        self.fails: dict[str, int] = {}
        self.opened = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in self.without or f"_{name}" not in type(self).__dict__:
            raise AttributeError(name)
        answer = getattr(self, f"_{name}")

        def function(*arguments: Any) -> Any:
            first = arguments[0] if arguments else self
            asked = self.cards[first] if isinstance(first, int) else first
            if name in asked.fails:
                raise NVMLError(asked.fails[name])
            return answer(*arguments)

        return function

    def _nvmlInit(self) -> None:
        self.opened += 1

    def _nvmlShutdown(self) -> None: ...

    def _nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self.cards[index]

    def _nvmlDeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def _nvmlDeviceGetPciInfo(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(busId=b"00000000:%02X:00.0" % card.number)

    def _nvmlDeviceGetTotalEccErrors(self, card: Card, kind: int, counter: int) -> int:
        assert kind == 1, "uncorrected"
        return (card.volatile, card.aggregate)[counter]

    def _nvmlDeviceGetRemappedRows(self, card: Card) -> tuple[int, int, int, int]:
        return card.rows

    def _nvmlDeviceGetFieldValues(self, card: Card, fields: list[int]) -> list[SimpleNamespace]:
        assert fields == [230]
        told = card.fails.get("field 230", 0)
        return [SimpleNamespace(nvmlReturn=told, value=SimpleNamespace(uiVal=card.recovery))]

    def _nvmlDeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:
        return card.throttle

    def _nvmlDeviceGetUtilizationRates(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(gpu=card.busy)


def read(module: Module) -> GpuReadings:
    readings = Nvml(lambda: module).read()
    assert readings is not None
    return readings


def reader(module: Module, root: Path, gpus: Gpus | None = None, told: int | None = None) -> NvmlReader:
    return NvmlReader(root, gpus or Gpus(), Nvml(lambda: module), told)


def codes(signs: list[Sign] | None) -> list[str]:
    assert signs is not None
    return [sign.code for sign in signs]


def test_everything_that_it_tells() -> None:
    module = Module(Card(0x1B, 1, 40, (5, 2, 1, 1), recovery=4, throttle=0x48, busy=97), Card(0x9B))
    assert read(module) == GpuReadings(
        2,
        (
            GpuReading(0, "GPU-27", "0000:1b:00", 1, 40, True, True, 4, 0x48, 97),
            GpuReading(1, "GPU-155", "0000:9b:00", 0, 0, False, False, 0, 0, 0),
        ),
    )


def test_it_is_opened_once() -> None:
    module = Module(Card(1))
    nvml = Nvml(lambda: module)
    assert nvml.read() == nvml.read()
    assert module.opened == 1


@pytest.mark.parametrize("code", [NO_DRIVER, NO_LIBRARY])
def test_no_driver_or_library_is_a_fact_and_no_error(code: int, tmp_path: Path) -> None:
    module = Module()
    module.fails["nvmlInit"] = code
    assert reader(module, tmp_path, told=8)(0.0) is None


def test_no_module_is_a_fact_and_no_error() -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'pynvml'")

    assert Nvml(missing).read() is None


def test_what_a_card_or_an_old_driver_does_not_tell_is_unknown() -> None:
    fails = {"nvmlDeviceGetTotalEccErrors": NOT_SUPPORTED, "nvmlDeviceGetRemappedRows": NO_FUNCTION, "field 230": 3}
    without = ("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetUtilizationRates")
    assert read(Module(Card(1, fails=fails), without=without)).gpus == (GpuReading(0, "GPU-1", "0000:01:00"),)


@pytest.mark.parametrize(("code", "words"), [(LOST, "GPU is lost"), (RESET, "GPU requires reset")])
def test_a_lost_card_is_a_sign_and_the_others_are_read(code: int, words: str, tmp_path: Path) -> None:
    lost = Card(1, fails={"nvmlDeviceGetRemappedRows": code})
    (sign, other) = reader(Module(lost, Card(2, recovery=1)), tmp_path)(0.0) or []
    assert (sign.code, sign.attrs["gpu_uuid"], sign.attrs["pci"]) == ("gpu.unreadable", "GPU-1", "0000:01:00")
    assert sign.attrs["text"] == words
    assert (other.code, other.attrs["gpu_uuid"]) == ("gpu.recovery_action", "GPU-2")


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetRemappedRows"])
def test_a_failure_of_the_library_is_no_sign_and_loses_no_other_card(function: str, tmp_path: Path) -> None:
    odd = Card(1, recovery=2, fails={function: UNKNOWN})
    with pytest.raises(Partly, match="GPU 0: Unknown Error") as caught:
        reader(Module(odd, Card(2, recovery=1)), tmp_path)(0.0)
    told = [] if function == "nvmlDeviceGetHandleByIndex" else ["gpu.recovery_action"]
    assert codes(caught.value.signs) == [*told, "gpu.recovery_action"]


def test_such_a_failure_is_the_readers_status_beside_its_signs(tmp_path: Path) -> None:
    given: list[Sign] = []
    module = Module(Card(1, fails={"nvmlDeviceGetHandleByIndex": UNKNOWN}), Card(2, recovery=1))
    one = Round("nvml", reader(module, tmp_path), 5.0, given.extend)
    one.once()
    assert one.status == "ok, but GPU 0: Unknown Error"
    assert codes(given) == ["gpu.recovery_action"]


def test_errors_that_were_counted_while_nobody_could_read_are_seen(tmp_path: Path) -> None:
    card = Card(1, volatile=1, aggregate=9)
    read_once = reader(Module(card), tmp_path)
    assert read_once(0.0) == []
    for function in ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetHandleByIndex"):
        card.fails[function] = UNKNOWN
        with pytest.raises(Partly) as caught:
            read_once(5.0)
        assert caught.value.signs == []
        card.volatile += 2
        card.aggregate += 2
        card.fails.clear()
        (sign,) = read_once(10.0) or []
        assert (sign.code, sign.attrs["volatile"], sign.attrs["aggregate"]) == ("gpu.ecc_uncorrected", 2, 2)
        assert read_once(15.0) == []


def test_a_library_that_cannot_count_raises_and_is_opened_anew(tmp_path: Path) -> None:
    module = Module(Card(1))
    one = Round("nvml", reader(module, tmp_path), 5.0, lambda signs: pytest.fail(f"{signs}"))
    module.fails["nvmlDeviceGetCount"] = UNKNOWN
    one.once()
    assert one.status == "NVMLError: Unknown Error"
    module.fails.clear()
    one.once()
    assert (one.status, module.opened) == ("ok", 2)


def test_a_card_that_is_gone_is_missed_and_its_address_stays_known(tmp_path: Path) -> None:
    module, gpus = Module(Card(1), Card(2)), Gpus()
    FakeHost(tmp_path).gpu_information("0000:03:00", "GPU-3")
    read_once = reader(module, tmp_path, gpus)
    assert read_once(0.0) == []
    module.cards = module.cards[:1]
    (sign,) = read_once(5.0) or []
    assert (sign.code, sign.attrs["expected"], sign.attrs["found"]) == ("gpu.missing", 2, 1)
    assert [gpus.uuid(f"0000:0{n}:00") for n in (1, 2, 3)] == ["GPU-1", "GPU-2", "GPU-3"]


def test_fewer_cards_than_the_site_says(tmp_path: Path) -> None:
    assert codes(reader(Module(Card(1)), tmp_path, told=8)(0.0)) == ["gpu.missing"]
    assert reader(Module(Card(1)), tmp_path, told=1)(0.0) == []


def test_who_is_busy_is_told_to_the_other_readers(tmp_path: Path) -> None:
    gpus = Gpus()
    reader(Module(Card(1, busy=80), Card(2, busy=3)), tmp_path, gpus)(0.0)
    assert gpus.busy == frozenset({"0000:01:00"})
