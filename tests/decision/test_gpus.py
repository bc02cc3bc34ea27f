"""Whose GPU a sign is about, where several jobs share a node."""

import pytest

from controller.decision.assess.gpus import split
from controller.decision.evidence import SENSOR, Evidence, Scalar

pytestmark = pytest.mark.pure
MINE, OTHER = "GPU-01111111-aaaa-bbbb-cccc-000000000000", "GPU-11111111-aaaa-bbbb-cccc-000000000001"
SLICE = "MIG-02222222-aaaa-bbbb-cccc-000000000000"


def hits(held: list[str], **attrs: Scalar) -> bool:
    piece = Evidence("sign:1", "xid.79", "kernel", "kernel", SENSOR, "the line", node="gpu1", attrs=attrs)
    return split([piece], {"gpu1": frozenset(held)} if held else {})[0] == (piece,)


def test_only_the_holder_of_the_gpu_is_hit() -> None:
    assert hits([MINE], gpu_uuid=MINE) and hits([OTHER, MINE], gpu_uuid=MINE)
    assert not hits([OTHER], gpu_uuid=MINE)


def test_what_is_unknown_may_be_anybodys() -> None:
    assert hits([], gpu_uuid=MINE) and hits([OTHER], pci="0000:9b:00")


def test_a_fault_of_a_gpu_hits_all_of_its_slices() -> None:
    assert hits([MINE, SLICE], gpu_uuid=MINE) and hits([f"MIG-{MINE}/5/0"], gpu_uuid=MINE)
    assert not hits([OTHER, SLICE], gpu_uuid=MINE) and not hits([f"MIG-{OTHER}/5/0"], gpu_uuid=MINE)


@pytest.mark.parametrize("told", ["GPU-I 5", "GPU-I 5, GPU-CI 2", "GI 5"])
def test_a_fault_of_one_slice_hits_whoever_holds_it(told: str) -> None:
    """As the reader of kernel lines tells it; a slice's holder whose instance is unknown may be hit."""
    assert hits([f"MIG-{MINE}/5/0"], gpu_uuid=MINE, gpu_instance=told)
    assert not hits([f"MIG-{MINE}/1/0"], gpu_uuid=MINE, gpu_instance=told)
    assert hits([MINE, SLICE], gpu_uuid=MINE, gpu_instance=told)
    assert hits([f"MIG-{MINE}/1/0"], gpu_uuid=MINE, gpu_instance="GPU-CI 5"), "no instance is named"
