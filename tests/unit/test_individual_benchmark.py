"""The benchmark of individual accounting, broken off: it goes on to the same end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import individual
from torch.utils.data import TensorDataset

import privypurse as pp


@pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
def test_a_run_that_was_broken_off_ends_like_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(40, 1, 28, 28), torch.randint(0, 10, (40,)))
    plan = pp.plan(pp.Budgets(np.full(40, 2.4), delta=1e-5), "uniform", steps=6, batch_size=10, accountant="rdp")
    how: Any = (individual.TASKS["mnist"], plan, data, True, np.arange(5), 0, "cpu")
    whole = individual.train(*how)

    class BrokenOff(Exception):
        pass

    def keep_and_stop(path: Path, fill: Any) -> None:
        keep(path, fill)
        raise BrokenOff

    keep = individual.replace_file
    monkeypatch.setattr(individual, "BETWEEN", 0.0)
    for _ in range(2):  # once from the beginning, once from a checkpoint
        monkeypatch.setattr(individual, "replace_file", keep_and_stop)
        with pytest.raises(BrokenOff):
            individual.train(*how, checkpoint=tmp_path / "run.pt")
    monkeypatch.setattr(individual, "replace_file", keep)
    again = individual.train(*how, checkpoint=tmp_path / "run.pt")

    assert np.array_equal(whole.norms, again.norms)
    assert np.array_equal(whole.spending.epsilon("rdp"), again.spending.epsilon("rdp"))
    ends = (course.model.state_dict().values() for course in (whole, again))
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
