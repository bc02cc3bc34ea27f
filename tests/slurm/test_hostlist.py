"""Host lists against ClusterShell, which reads and folds them independently of us."""

from __future__ import annotations

import tracemalloc

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from controller.slurm.hostlist import expand, fold

pytestmark = pytest.mark.pure

PREFIXES = st.sampled_from(["gpu", "n", "rack1-n", "b2u", "a.b-"])


@st.composite
def range_texts(draw: st.DrawFn) -> str:
    low = draw(st.integers(0, 120))
    width = draw(st.sampled_from([0, 2, 3, 4]))
    high = low + draw(st.integers(0, 12))
    if width == 0 and len(str(low)) != len(str(high)):
        return str(low)  # ClusterShell takes 9-11 for unpadded as we do; kept apart below
    if draw(st.booleans()) or high == low:
        return str(low).zfill(width)
    return f"{str(low).zfill(width)}-{str(high).zfill(width)}" if high < 10 ** max(width, 1) or width == 0 else str(low)


@st.composite
def list_texts(draw: st.DrawFn) -> str:
    items = []
    for _ in range(draw(st.integers(1, 4))):
        ranges = ",".join(draw(st.lists(range_texts(), min_size=1, max_size=4)))
        suffix = draw(st.sampled_from(["", "", "-ib", "s[1-2]"]))
        items.append(draw(st.sampled_from([f"{draw(PREFIXES)}[{ranges}]{suffix}", f"{draw(PREFIXES)}7"])))
    return ",".join(items)


@given(list_texts())
def test_expand_gives_the_names_that_clustershell_gives(text: str) -> None:
    assert set(expand(text)) == set(NodeSet(text))


@given(
    st.lists(
        st.builds(
            lambda prefix, number, width: prefix + str(number).zfill(width),
            PREFIXES,
            st.integers(0, 120),
            st.sampled_from([0, 2, 3]),
        )
    )
)
def test_fold_is_read_by_clustershell_and_by_us(names: list[str]) -> None:
    folded = fold(names)
    assert set(expand(folded)) == set(names)
    assert set(NodeSet(folded)) == set(names)
    assert len(expand(folded)) == len(set(names))


@given(st.lists(st.integers(1, 400), min_size=1, unique=True))
def test_plain_numbers_fold_as_clustershell_folds_them(numbers: list[int]) -> None:
    names = [f"gpu{number}" for number in numbers]
    assert fold(names) == str(NodeSet.fromlist(names))


@given(st.text(alphabet="ab1209[],- _.", max_size=24))
def test_any_text_gives_names_or_a_value_error(text: str) -> None:
    try:
        names = expand(text)
    except ValueError:
        return
    assert expand(fold(names)) or not names
    assert all(name and not set(name) & set("[], ") for name in names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("rack[1-2]n[1-2]", ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]),
        ("n[3,1,2]", ["n3", "n1", "n2"]),
        ("n1,n1", ["n1", "n1"]),
        (" n1 , n2 ", ["n1", "n2"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        (None, []),
        ("N/A", []),
    ],
)
def test_order_and_repetition_are_kept(text: str | None, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    ["a,,b", "a,", ",a", "a b", "a[1", "a]", "a[1-2]]", "a[1-9999999999]", "a[0-99999999]", "a[٣]", "a;b", "$(x)"],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        expand(text)


def test_fold_refuses_what_is_no_host_name() -> None:
    with pytest.raises(ValueError, match="not a host name"):
        fold(["gpu1", "gpu[2-3]"])


def test_fold_of_nothing_and_of_one() -> None:
    assert fold([]) == ""
    assert fold(["gpu007"]) == "gpu007"
    assert fold(["login", "gpu2", "gpu1", "gpu2"]) == "login,gpu[1-2]"


def test_a_list_that_multiplies_is_refused_before_it_fills_the_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more than 1048576 hosts"):
            expand("a" + "[0-9999]" * 200)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
