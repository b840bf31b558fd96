"""Settings follow from validation scores alone, and the test set stays shut until they do."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from privypurse.errors import InvalidInput
from reproductions import catalogue, data, features, rival_training
from reproductions.choice import Choice, Rivals, Unfinished, rivals_of
from reproductions.feature_models import network
from reproductions.results import Job
from reproductions.rival_training import Averages

RAW = {
    "title": "Small",
    "about": "",
    "data": "mnist",
    "delta": 1e-5,
    "seeds": 2,
    "methods": ["uniform", "sample", "none"],
    "budgets": {"kind": "levels", "epsilon": [1.0, 2.0], "shares": [0.5, 0.5]},
    "settings": {"walk": 1.0, "steps": 10, "decays": [0.0, 0.9]},
    "choice": {
        "lead": "sample",
        "validation": 10,
        "seeds": [7],
        "stages": [
            {"grid": {"walk": [1.0, 2.0], "width": [8, 16]}},
            {"grid": {"walk": [0.5, 4.0]}, "methods": ["uniform"]},
        ],
    },
}


@pytest.fixture
def table():
    return rivals_of(RAW, "small")


def scored(choice: Choice, value) -> Choice:
    """The choice with scores for all that its present stage misses."""
    new = {job.key: {str(decay): value(job, decay) for decay in job.settings.decays} for job in choice.missing()}
    return Choice(choice.table, {**choice.scores, **new})


def test_stages_follow_one_another_around_the_best(table) -> None:
    choice = Choice(table, {})
    first = choice.missing()
    assert {(job.settings.walk, job.settings.width) for job in first} == {
        (1.0, 64),  # what the file says goes into the comparison too
        *((walk, width) for walk in (1.0, 2.0) for width in (8, 16)),
    }
    assert {(job.place["method"], job.seed, job.place["purpose"]) for job in first} == {("sample", 7, "choice")}

    choice = scored(choice, lambda job, decay: job.settings.walk + job.settings.width + (decay == 0.9))
    with pytest.raises(Unfinished, match="3 scores are missing"):  # the lead's are all there, uniform's are not
        choice.chosen("sample")
    second = choice.missing()
    assert {(job.place["method"], job.settings.width) for job in second} == {("uniform", 64)}
    assert {job.settings.walk for job in second} == {1.0, 0.5, 4.0}

    choice = scored(choice, lambda job, decay: -job.settings.walk)
    assert choice.missing() == []
    assert (choice.chosen("sample").settings.walk, choice.chosen("sample").decay) == (1.0, 0.9)
    assert (choice.chosen("uniform").settings.walk, choice.chosen("uniform").decay) == (0.5, 0.0)
    assert choice.chosen("none").settings == choice.chosen("sample").settings
    jobs = choice.final_jobs()
    assert [(job.seed, job.place["method"]) for job in jobs[:3]] == [(0, "uniform"), (0, "sample"), (0, "none")]
    assert len(jobs) == 6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lead": "smaple"}, "lead has 'smaple'"),
        ({"validation": 0}, "validation"),
        ({"seeds": [1]}, "not among those of the final"),  # 0 and 1 are reported
        ({"seeds": []}, "name one or more"),
        ({"stages": [{"grid": {"walk": [1.0, -0.03]}}]}, "walk"),
        ({"stages": [{"grid": {"steps": [0]}}]}, "steps"),
        ({"stages": [{"grid": {"walks": [0.1]}}]}, "walks"),
        ({"stages": [{"grid": {}, "methods": ["scales"]}]}, "'scales'"),
        ({"stages": [{"grid": {"decays": [[]]}}]}, "decays is empty"),
    ],
)
def test_a_choice_is_checked_before_anything_is_trained(change, said) -> None:
    with pytest.raises(InvalidInput, match=said):
        rivals_of({**RAW, "choice": {**RAW["choice"], **change}}, "small")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"methods": []}, "methods is empty"),
        ({"methods": ["uniform", "exclude@no"]}, "exclude@no"),
        ({"seeds": 0}, "seeds"),
        ({"choice_seeds": [3]}, "table small has no 'choice_seeds'; it has about, budgets, choice, clients, data"),
        ({"settings": {"walk": 0.0}}, "walk"),
        ({"settings": {"scaling": "centred"}}, 'is for network "probe"'),
        ({"settings": {"scaling": "centred", "network": "probe", "steps": 1}}, "takes 2 steps or more"),
        (
            {
                "settings": {"scaling": "centred", "network": "probe"},
                "clients": {"number": 3, "rounds": 2, "client_rate": 0.5, "reference": 1.0},
            },
            "all records in one place",
        ),
    ],
)
def test_a_table_is_checked_in_the_words_of_its_file(change, said) -> None:
    rivals_of({**RAW, "methods": ["uniform", "exclude@2.5"]}, "small")
    with pytest.raises(InvalidInput, match=said):
        rivals_of({**RAW, **change}, "small")


def test_the_test_set_stays_shut_without_a_finished_choice(table, monkeypatch) -> None:
    opened = []

    def load(name, part, views, scaling, folder, device):
        opened.append(part)
        return torch.randn(5, 3, 4, 4), torch.zeros(5, dtype=torch.int64)

    monkeypatch.setattr(features, "load", load)
    rival_training._test_records.cache_clear()
    model = network("linear", (3, 4, 4), 8)
    averages = Averages(model, table.settings.decays)
    choice = scored(Choice(table, {}), lambda job, decay: job.settings.walk)
    job = Job({"purpose": "final", "method": "sample"}, table.settings, 0)
    with pytest.raises(Unfinished, match="small is not finished"):
        rival_training.test_accuracy(choice, job, model, averages, Path())
    choice = scored(choice, lambda job, decay: job.settings.walk)
    with pytest.raises(Unfinished, match="did not choose"):  # walk 2 was chosen
        rival_training.test_accuracy(choice, job, model, averages, Path())
    assert opened == []
    job = Job({"purpose": "final", "method": "sample"}, choice.chosen("sample").settings, 0)
    assert set(rival_training.test_accuracy(choice, job, model, averages, Path())) == {
        str(choice.chosen("sample").decay)
    }
    assert opened == ["test"]


def test_the_validation_records_are_apart_and_the_same_for_all() -> None:
    trains, chooses = data.split(100, 30)
    assert len(chooses) == 30
    assert np.array_equal(np.sort(np.concatenate([trains, chooses])), np.arange(100))
    assert np.array_equal(data.split(100, 30)[1], chooses)
    with pytest.raises(InvalidInput, match="validation is 100"):
        data.split(100, 100)


def test_files_with_mistakes_are_named() -> None:
    with pytest.raises(InvalidInput, match="settings has no 'wlak'"):
        rivals_of({**RAW, "settings": {"wlak": 1.0}}, "small")
    with pytest.raises(InvalidInput, match=r"choice.*no 'stagse'"):
        rivals_of({**RAW, "choice": {**RAW["choice"], "stagse": 1}}, "small")
    with pytest.raises(InvalidInput, match="table small needs methods"):
        rivals_of({name: value for name, value in RAW.items() if name != "methods"}, "small")
    with pytest.raises(InvalidInput, match=r"no table 'nothing'; choose one of .*scattering-mnist"):
        catalogue.load("nothing")


@pytest.mark.parametrize(
    "name", [path.stem for path in catalogue.available() if isinstance(catalogue.read(path), Rivals)]
)
def test_every_file_can_be_read(name: str) -> None:
    table = catalogue.load_rivals(name)
    choice, stages = Choice(table, {}), 0
    while choice.missing():
        choice, stages = scored(choice, lambda job, decay: job.settings.walk), stages + 1
    assert stages <= len(table.stages)
    own = {method for stage in table.stages for method in stage.methods} | {table.lead}
    assert own == set(table.methods)  # rivals are tuned as the lead is
    assert table.seeds >= 5


def tuned_alike(table: Rivals) -> bool:
    """Whether the last walks that are tried are the same ones for every method, by its own scores."""
    tried = dict[str, tuple[float, ...]]()
    for stage in table.stages:
        for method in stage.methods or table.methods:
            tried[method] = tuple(stage.grid.get("walk", ()))
    own = set(table.stages[-1].methods) == set(table.methods)
    return own and len({tried[method] for method in table.methods}) == 1


@pytest.mark.parametrize(
    "name", ["cifar10-last-block", "cifar10-last-block-70-20-10", "sst2-lora", "sst2-lora-70-20-10"]
)
def test_fine_tuning_is_tuned_alike_for_every_method(name: str) -> None:
    table = catalogue.load_rivals(name)
    assert tuned_alike(table)
    stage = table.stages[-1]
    assert not tuned_alike(replace(table, stages=[replace(stage, methods=["sample"])]))
    poorer = replace(stage, methods=["uniform"], grid={**stage.grid, "walk": list(stage.grid["walk"])[:-1]})
    rest = replace(stage, methods=[method for method in table.methods if method != "uniform"])
    assert not tuned_alike(replace(table, stages=[poorer, rest]))
