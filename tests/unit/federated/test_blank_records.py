"""Records that cannot be read, or are not like the example: they pay, contribute nothing, and nobody is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from everybody_drawn import EVERYTHING, NOTHING, made
from federation import STATE, bits, flat, granted, records
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

import privypurse as pp

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests


class Files(Dataset[Any]):
    """Records as of files; ``broken`` says what comes of some of them."""

    def __init__(self, size: int = 9, broken: dict[int, Any] | None = None) -> None:
        self._tensors, self._broken = [tensor[:size] for tensor in records().tensors], broken or {}

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        instead = self._broken.get(index)
        if isinstance(instead, BaseException):
            raise instead
        return instead or (self._tensors[0][index], int(self._tensors[1][index]))


class Panic(BaseException):
    """As of a library that is written in Rust."""


@pytest.mark.parametrize(
    "instead",
    [
        OSError("the file of Jane Doe is damaged"),
        Panic("in the file of Jane Doe"),
        (torch.zeros(4), 0),
        (torch.zeros(3, dtype=torch.float64), 0),
        (torch.zeros(3), "B"),
        (torch.zeros(3),),
        (torch.full((3,), torch.nan), 0),
    ],
    ids=["raises", "panics", "longer", "wider", "a label that is no number", "no label", "not finite"],
)
def test_a_record_that_cannot_be_read_contributes_nothing_and_the_others_all(tmp_path: Path, instead: Any) -> None:
    """It pays, and the server is not told; what is left is what an answer without it would be."""
    found = made(tmp_path / "a", dataset=Files(9, {8: instead})).answer(1, STATE)
    without = made(tmp_path / "b", dataset=Files(8), budgets=granted(EVERYTHING, 8)).answer(1, STATE)
    whole = made(tmp_path / "c", dataset=Files(9)).answer(1, STATE)
    np.testing.assert_allclose(flat(found), flat(without), rtol=1e-5, atol=1e-7)
    assert np.abs(flat(found) - flat(whole)).max() > 1e-3


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_the_process_is_no_broken_record(tmp_path: Path, end: type[BaseException]) -> None:
    with pytest.raises(end):
        made(tmp_path, dataset=Files(9, {8: end()})).answer(1, STATE)


def test_it_is_said_here_once_which_record_that_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = made(tmp_path, dataset=Files(9, {8: OSError("damaged"), 0: (torch.zeros(4), 0)}))
    for number in (1, 2):
        client.answer(number, STATE)
    assert sorted(record.getMessage() for record in caplog.records) == [
        "record 0 is left blank: its shape or type is not that of the example",
        "record 8 is left blank: OSError damaged",
    ]


def test_the_first_record_may_be_the_broken_one(tmp_path: Path) -> None:
    found = made(tmp_path / "a", dataset=Files(9, {0: OSError("damaged")})).answer(1, STATE)
    x, y = (tensor[1:] for tensor in records().tensors)
    without = made(tmp_path / "b", dataset=TensorDataset(x, y), budgets=granted(EVERYTHING, 8)).answer(1, STATE)
    np.testing.assert_allclose(flat(found), flat(without), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_a_record_that_breaks_between_two_rounds_does_not_end_the_client(tmp_path: Path) -> None:
    """A client is made for each message: what is in one record must not decide whether there is one."""
    made(tmp_path, dataset=Files(9)).close()
    for index in range(9):
        client = made(tmp_path, dataset=Files(9, {index: OSError("damaged")}))
        client.answer(1 + index, STATE)
        client.close()


class Picky(TensorDataset):
    """Tensors, but one of the records cannot be had."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if index == 8:
            raise OSError("damaged")
        return super().__getitem__(index)


def test_tensors_with_a_way_of_their_own_are_files_too(tmp_path: Path) -> None:
    found = made(tmp_path / "a", dataset=Picky(*records().tensors)).answer(1, STATE)
    without = made(tmp_path / "b", dataset=Files(8), budgets=granted(EVERYTHING, 8)).answer(1, STATE)
    np.testing.assert_allclose(flat(found), flat(without), rtol=1e-5, atol=1e-7)


def test_where_no_record_can_be_read_the_answer_is_noise(tmp_path: Path) -> None:
    broken = {index: OSError("damaged") for index in range(9)}
    found = made(tmp_path / "a", dataset=Files(9, broken)).answer(1, STATE)
    nobody = made(tmp_path / "b", budgets=granted(NOTHING, 9)).answer(1, STATE)
    assert bits(found) == bits(nobody)


def test_files_need_an_example_for_a_record_would_decide_about_others(tmp_path: Path) -> None:
    """Were it the first record or the usual one, whoever changes theirs could turn all others blank."""
    with pytest.raises(pp.InvalidInput, match="give example="):
        made(tmp_path, dataset=Files(9), example=None)
    with pytest.raises(pp.InvalidInput, match="example must be inputs and a label"):
        made(tmp_path, dataset=Files(9), example=("x", "y"))
    longer = (torch.zeros(4), 0)
    sums = [
        flat(made(tmp_path / str(many), dataset=Files(9, dict.fromkeys(range(many), longer))).answer(1, STATE))
        for many in (4, 5)
    ]
    lr, clip, steps, divisor = 0.5, 0.25, 4, 7
    assert np.linalg.norm(sums[0] - sums[1]) < 1.5 * steps * lr * clip / divisor  # a person, and no more


def test_files_give_what_tensors_give(tmp_path: Path) -> None:
    one, other = (
        made(tmp_path / str(k), dataset=data).answer(1, STATE) for k, data in enumerate((Files(), records()))
    )
    assert bits(one) == bits(other)
