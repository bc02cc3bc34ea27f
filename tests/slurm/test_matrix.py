"""The page of proofs says what the tests show, and rests on tests that exist."""

from __future__ import annotations

import importlib

import pytest

from controller.slurm import unsupported
from tests.slurm import matrix
from tests.slurm.contract import SlurmContract

pytestmark = pytest.mark.pure

ROWS = [*matrix.FACTS, *matrix.ACTIONS]


def test_the_page_is_what_the_tests_show() -> None:
    assert matrix.PAGE.read_text() == matrix.page(), "python -m tests.slurm.matrix writes it anew"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_a_row_rests_on_tests_that_exist(row: matrix.Row) -> None:
    assert all(callable(getattr(SlurmContract, name, None)) for name in row.contract)
    for adapter, (module, _) in matrix.READERS.items():
        reader = importlib.import_module(f"tests.slurm.{module}")
        assert all(callable(getattr(reader, name, None)) for name in row.tests_on_recordings(adapter))


def test_every_test_of_the_contract_is_in_a_row_or_is_about_arguments() -> None:
    named = {name for row in ROWS for name in row.contract}
    theirs = {name for name in dir(SlurmContract) if name.startswith("test_")}
    assert {name for name in theirs - named if "reaches_slurm" not in name} == {
        "test_a_reason_is_one_line_and_never_empty"
    }


def test_one_test_that_did_not_pass_takes_the_cell_back() -> None:
    row = matrix.ACTIONS[0]
    column = matrix.Column("22.05", matrix.COMMANDS, passed=frozenset(row.contract))
    assert column.cell(row) == "**live**"
    lacking = matrix.Column("22.05", matrix.COMMANDS, passed=frozenset(row.contract[1:]))
    assert lacking.cell(row) == ""  # an action cannot be proved on recordings
    assert lacking.cell(matrix.FACTS[0]) == "recorded"
    assert matrix.Column("99.01", matrix.COMMANDS).cell(matrix.FACTS[0]) == ""


def test_what_is_not_supported_is_there_with_its_refusal() -> None:
    text = matrix.page()
    assert all(unsupported.refusal(name) in text for name in unsupported.WHY)
