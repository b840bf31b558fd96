"""What a filter's leftover budget gains: trained as by the library, chosen before tested, told as in the file."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.accounting import gdp
from privypurse.errors import InvalidInput
from reproductions import catalogue, filter_gain, results
from reproductions.choice import Unfinished
from reproductions.filter_gain import CASES, PLAIN, STRETCHES, People, Setting

PAGE = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
FIXED, STEPS, CLASSES = 3, 9, 3  # a stretch of 3
LENGTH = 0.02
PEOPLE = 600
EPSILON = np.where(np.arange(PEOPLE) % 2, 200.0, 500.0)  # so large that noise hides nothing


def everybody() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    x = torch.randn(PEOPLE, 4, generator=random)
    y = (x[:, :CLASSES] + 0.3 * torch.randn(PEOPLE, CLASSES, generator=random)).argmax(1)
    y[::5] = (y[::5] + 1) % CLASSES  # some whom the model will get wrong to the end
    return x, y


@pytest.mark.filterwarnings("ignore:seed=")
@pytest.mark.parametrize("method", ["uniform", "scale"])
def test_it_trains_as_the_library_does(method: str) -> None:
    x, y = everybody()
    epsilon = np.full(PEOPLE, 200.0) if method == "uniform" else EPSILON
    budgets = pp.Budgets(epsilon, delta=1e-5)
    shape: dict[str, Any] = {"batch_size": PEOPLE, "clip_norm": 0.8, "extra_steps": STEPS - FIXED}
    plan = pp.plan(budgets, method, steps=FIXED, **shape)
    deviation = plan.noise_multiplier * plan.clip_norm
    walk = LENGTH * deviation * math.sqrt(STEPS)  # with that a step goes LENGTH times the sum of gradients
    assert walk < 0.01, "noise would hide what is compared"
    model = torch.nn.Linear(4, CLASSES)
    for weight in model.parameters():
        torch.nn.init.zeros_(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=LENGTH * PEOPLE)
    loss = partial(F.cross_entropy, reduction="none")
    done = pp.train(model, optimizer, TensorDataset(x, y), plan, loss, seed=0)
    weights = torch.cat([model.weight, model.bias[:, None]], 1).detach().T
    assert done.spending is not None
    assert isinstance(done.spending.meter, np.ndarray)
    assert done.spending.contributing is not None

    purses = np.square([float(gdp.mu(float(each), 1e-5)) for each in epsilon])
    people = People(F.pad(x, (0, 1), value=1.0), y, y < 0, torch.tensor(purses, dtype=torch.float32))
    setting = Setting(STEPS, float(plan.levels.clip_norm.max()), walk)
    ours = filter_gain.descend(people, CLASSES, [setting], "filter 3", 0)
    assert ours.weights[..., 0].numpy() == pytest.approx(weights.numpy(), abs=0.08)
    assert ours.spent[:, 0].numpy() == pytest.approx(done.spending.meter / purses, abs=0.03)
    out = ours.spent[:, 0] > 0.999
    assert 50 < int(out.sum()) < 550, "the case has to have both"
    assert (out.numpy() == ~done.spending.contributing).mean() > 0.95

    unfiltered = filter_gain.descend(people, CLASSES, [Setting(STEPS, setting.clip_norm, walk * 3**0.5)], PLAIN, 0)
    assert np.abs(unfiltered.weights[..., 0].numpy() - weights.numpy()).max() > 0.3, "nobody stopped would be seen"


@pytest.mark.parametrize("method", STRETCHES)
def test_nobody_overdraws_whatever_the_stretch(method: str) -> None:
    x, y = everybody()
    purses = torch.where(torch.arange(PEOPLE) % 2 == 0, 0.05, 1.0)
    people = People(F.pad(x, (0, 1), value=1.0), y, y < 0, purses)
    settings = [Setting(steps, clip, 0.5) for steps in (6, 12) for clip in (0.1, 2.0)]
    trained = filter_gain.descend(people, CLASSES, settings, method, 1)
    assert trained.weights.shape == (5, CLASSES, 4)
    assert torch.isfinite(trained.weights).all()
    assert float(trained.spent.max()) <= 1 + 1e-5
    alone = filter_gain.descend(people, CLASSES, settings[1:2], method, 1)
    assert torch.allclose(alone.weights[..., 0], trained.weights[..., 1], atol=1e-5)


def test_no_test_accuracy_without_a_finished_choice() -> None:
    with pytest.raises(Unfinished, match="heart / filter 2 is not finished"):
        filter_gain.final_line([], "heart", "filter 2")
    lines = results.read(filter_gain.path_in(catalogue.RESULTS))
    line = next(line for line in lines if (line["purpose"], line["column"]) == ("choice", "filter 2"))
    filter_gain.chosen([line], line["row"], "filter 2")
    for broken in ({**line, "seeds": line["seeds"][:-1]}, {**line, "grid": line["grid"][:-1]}):
        with pytest.raises(Unfinished):
            filter_gain.final_line([broken], line["row"], "filter 2")


def test_a_result_of_other_settings_counts_for_nothing() -> None:
    lines = results.read(filter_gain.path_in(catalogue.RESULTS))
    changed = [{**line, "setting": {**line["setting"], "steps": 7}} if "setting" in line else line for line in lines]
    with pytest.raises(InvalidInput, match="no result of heart / plain"):
        filter_gain.final(changed, "heart", PLAIN)


def test_intervals_are_those_of_the_file() -> None:
    lines = list(map(json.loads, filter_gain.path_in(catalogue.RESULTS).read_text(encoding="utf-8").splitlines()))
    scores = {
        line["column"]: line["score"] for line in lines if (line["purpose"], line["row"]) == ("final", "adult-1000")
    }
    assert all(len(each) == filter_gain.SEEDS for each in scores.values())
    low, high = stats.ttest_rel(scores["filter 2"], scores[PLAIN]).confidence_interval(0.95)
    assert f"[{low:+.2f}, {high:+.2f}]" in filter_gain.gain_table(lines, ["adult-1000"])[-1]


def test_the_page_tells_the_tables() -> None:
    lines = results.read(filter_gain.path_in(catalogue.RESULTS))
    for line in (*filter_gain.gain_table(lines, list(CASES)), *filter_gain.purse_table(lines, list(CASES))):
        assert line in PAGE
