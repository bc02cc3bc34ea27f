"""The same machine, another one, or too little known to say."""

import pytest

from controller.decision.hardware import Facts, compare, identified, merged

pytestmark = pytest.mark.pure

ONE: Facts = {"serials": ["product_uuid:a"], "gpus": ["g1", "g2"], "network": ["m1", "m2"], "system": ["s1"]}


def without(*kinds: str, **changes: list[str]) -> Facts:
    return {k: v for k, v in ONE.items() if k not in kinds} | changes


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (ONE, "same"),
        (without(gpus=["g1", "g9"], network=["m1"]), "same"),
        (without(gpus=["g8", "g9"], network=["m9"]), "same"),
        (without(serials=["product_uuid:b"], gpus=["g8"], network=["m8"]), "other"),
        (without(serials=["product_uuid:b"]), "unknown"),
        (without("serials", gpus=["g8", "g9"], network=["m9"]), "other"),
        (without("serials", "network", gpus=["g8", "g9"]), "unknown"),
        (without("serials", "network", gpus=["g8", "g9"], system=["s2"]), "other"),
        (without("serials", "gpus", network=["m9"]), "unknown"),
        (without("serials", "gpus", network=["m9"], system=["s2"]), "other"),
        ({"system": ["s2"]}, "unknown"),
        ({"system": ["s1"]}, "unknown"),
        ({}, "unknown"),
    ],
    ids=[
        "itself", "a part replaced", "all parts replaced", "another", "its GPUs in another chassis",
        "another, serials unreadable", "other GPUs only", "other GPUs and installation", "other cards only",
        "other cards and installation", "another installation", "a shared installation", "nothing readable",
    ],
)  # fmt: skip
def test_compare(seen: Facts, verdict: str) -> None:
    assert compare(ONE, seen).verdict == verdict
    assert compare(seen, ONE).verdict == verdict


def test_an_instance_is_given_once() -> None:
    assert compare({"instance": ["i-1"]}, {"instance": ["i-2"]}).verdict == "other"
    assert compare({"instance": ["i-1"], "network": ["m1"]}, {"instance": ["i-1"], "network": ["m2"]}).verdict == "same"


def test_what_differs_is_said() -> None:
    assert compare(ONE, without(gpus=["g8"])).differs == ("GPUs",)


def test_little_knowledge_identifies_nothing() -> None:
    assert not identified({"system": ["s1"], "gpus": []}) and identified({"network": ["m1"]})


def test_a_containers_narrow_sight_takes_nothing_away() -> None:
    assert merged(ONE, {"gpus": ["g1"], "network": ["m1", "m3"], "serials": []}) == {**ONE, "network": ["m1", "m3"]}
