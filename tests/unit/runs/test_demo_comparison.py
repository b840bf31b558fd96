"""What the demonstration says of differences, and whom it trains and tests on."""

import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import privypurse as pp
from privypurse import datasets
from privypurse.cli import demo
from privypurse.datasets.census import ADULT_ENCODING
from privypurse.errors import InvalidInput
from privypurse.runs import comparison, workers

ROOT = Path(__file__).parents[3]


def test_a_gain_has_the_interval_of_a_paired_t_test():
    random = np.random.default_rng(0)
    shared = random.normal(size=5)
    better, worse = shared + random.normal(1.0, 0.1, 5), shared
    mean, low, high = comparison.gain(better, worse)
    paired = stats.ttest_rel(better, worse).confidence_interval(0.95)
    assert (low, high) == (pytest.approx(paired.low), pytest.approx(paired.high))
    assert mean == pytest.approx(better.mean() - worse.mean())
    unpaired = stats.ttest_ind(better, worse).confidence_interval(0.95)
    assert high - low < 0.5 * (unpaired.high - unpaired.low)  # what forgetting the pairs would have given
    assert comparison.gain(better[:1], worse[:1])[1:] == (-np.inf, np.inf)


def test_every_method_of_every_crowd_has_settings():
    for crowd in comparison.CROWDS.values():
        assert set(crowd.settings) == set(comparison.COMPARED)
        assert crowd.batch_size <= 0.1 * crowd.people  # so that nobody but who grants most need be left


def test_processes_are_started_afresh(monkeypatch):
    """A forked one would have the same random state as its sibling."""
    asked = []

    def pool(jobs, context, **rest):
        asked.append((jobs, context.get_start_method()))
        return ProcessPoolExecutor(1)

    monkeypatch.setattr(workers, "ProcessPoolExecutor", pool)
    with workers.workers(2):
        pass
    assert asked == [(2, "spawn")]


def test_what_the_demo_says_of_pictures_is_what_was_measured():
    table = (ROOT / "reproductions" / "results" / "headline.md").read_text(encoding="utf-8")
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    (measured,) = (dict(zip(head, row, strict=True)) for row in rows if row[0] == "CIFAR-10")
    said = re.findall(r"\d\d\.\d\d", demo.LARGE)
    columns = ("uniform", "exclude", "Sample", "no privacy")
    assert said == [re.findall(r"\d\d\.\d\d", measured[column])[0] for column in columns]


@pytest.mark.slow
def test_nobody_is_tested_on_who_trained():
    adult = datasets.adult()
    first, second = (comparison.people_of(3_000, seed) for seed in (0, 1))
    again = comparison.people_of(3_000, 0)
    assert np.array_equal(first.train.inputs, again.train.inputs)
    assert not np.array_equal(first.train.inputs, second.train.inputs)
    assert np.array_equal(first.test.labels, adult.labels()[adult.test])
    everybody = comparison.people_of(26_000, 0, held=6_561)
    both = np.concatenate([everybody.train.inputs, everybody.test.inputs])
    # All of the training half, each once: no person is on both sides.
    rows, counts = np.unique(both, axis=0, return_counts=True)
    half, wanted = np.unique(adult.features()[adult.train], axis=0, return_counts=True)
    assert np.array_equal(rows, half)
    assert np.array_equal(counts, wanted)
    with pytest.raises(InvalidInput, match=r"26,001 people and 6,561 others"):
        comparison.people_of(26_001, 0, held=6_561)


@pytest.mark.slow
def test_a_model_of_the_demo_can_be_asked(tmp_path):
    people = comparison.people_of(60, 0)
    asked = {name: values[:5] for name, values in datasets.adult().columns.items()}
    for hidden in (0, 3):
        folder = tmp_path / str(hidden)
        comparison.trained(people, None, comparison.Setting(hidden, 1.0, 0.5), 0, steps=2, batch_size=20, kept=folder)
        state = {name: value.numpy() for name, value in torch.load(folder / "model.pt").items()}
        outputs = datasets.Encoder(ADULT_ENCODING).encode(asked)
        for layer in sorted({name.split(".")[0] for name in state}):
            outputs = np.maximum(outputs, 0) if layer == "3" else outputs
            outputs = outputs @ state[f"{layer}.weight"].T + state[f"{layer}.bias"]
        chances = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
        model = pp.load(folder)
        assert model.predict_proba(asked) == pytest.approx(chances, abs=1e-5)
        assert set(model.predict(asked)) <= {"<=50K", ">50K"}
