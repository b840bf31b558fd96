"""How good a model is: whose figures they are decides who may see them, and files say so."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from components import require
from privypurse.datasets.encoding import Range
from privypurse.datasets.targets import Classes, Flags, Number
from privypurse.runs.folder import RunFolder
from privypurse.runs.measures import WHOSE, Measured
from privypurse.runs.objectives import losses_of
from privypurse.runs.records import Groups
from privypurse.runs.training_run import add_measures

NAN = np.nan
TARGETS = {
    "classes": (Classes("y", ("no", "yes")), [[0, 1], [1, 0.5], [0, 0]], np.array([1, 0, 1])),
    "several": (Classes("y", tuple("abc")), [[0, 1, 0], [1, 0.5, 0], [0, 0, 3]], np.array([1, 0, 1])),
    "number": (Number("y", Range(0, 10)), [[-1], [0.2], [1]], np.array([[-1], [0.4], [0]], np.float32)),
    "flags": (Flags(("a", "b")), [[1, 0], [0, 2], [3, 3]], np.array([[1, NAN], [0, NAN], [1, NAN]])),
}


def measured(case, data="people", **others):
    target, outputs, targets = TARGETS[case]
    return Measured(target, np.array(outputs, float), targets, np.array([1.0, 2.0, 6.0]), data, **others)


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("case", TARGETS)
def test_who_may_see_it_follows_from_whose_records_they_are(case, seeded, tmp_path):
    for data in WHOSE:
        folder = RunFolder.begin(tmp_path / data, "train")
        found = measured(case, data)
        add_measures(folder, found, replace(found, measured="members"), [], plots=False, seeded=seeded)
        public = {name for name, file in folder.files.items() if file.public}
        assert public == ({"test.json"} if data in ("public", "released") and not seeded else set())
        told = json.loads((tmp_path / data / "test.json").read_text(encoding="utf-8"))
        assert (told["measured"], told["about"]) == (data, WHOSE[data])
        assert ("internal" in told["about"]) == (data in ("people", "members"))
        json.dumps(told, allow_nan=False)


def test_figures_are_in_the_targets_units_and_by_group():
    groups = {"sex": Groups(("F", "M", "(other)", "(missing)"), np.array([0, 3, 0]))}
    told = measured("number", groups=groups).report()
    assert told["mean_absolute_error"] == pytest.approx((0 + 1 + 5) / 3)  # 0, 6 and 10 for 0, 7 and 5
    assert told["loss"] == 3
    assert {name: one["mean_absolute_error"] for name, one in told["groups"]["sex"].items()} == {
        "F": pytest.approx(2.5),
        "(missing)": pytest.approx(1),
    }
    assert "calibration" not in told["groups"]["sex"]["F"]
    flags = measured("flags").report()["labels"]
    assert flags["b"] is None  # nobody said
    assert (flags["a"]["records"], flags["a"]["auc"]) == (3, 1.0)
    assert measured("several").accuracy == pytest.approx(2 / 3)
    assert measured("flags").accuracy is None


ANSWERS = {
    "classes": ([0.0, math.log(2)], TARGETS["classes"][2]),
    "several": ([math.log(3), math.log(2), 0.0], np.array([0, 1, 0, 2, 1, 0])),
    "number": ([-0.2], TARGETS["number"][2]),
    "flags": ([math.log(2), 0.0], np.array([[1, NAN], [0, 1], [1, 0]])),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_the_loss_without_a_model_is_that_of_the_best_answer_for_all(case):
    """By the loss that trains: of these shares or means, and less than of any other answer nearby."""
    answer, targets = ANSWERS[case]
    target = TARGETS[case][0]
    told = Measured(
        target, np.zeros((len(targets), len(answer))), targets, np.ones(len(targets))
    ).loss_without_a_model

    def loss(answer):
        outputs = torch.tensor(answer, dtype=torch.float64).repeat(len(targets), 1)
        return losses_of(target)(outputs, torch.as_tensor(targets)).mean().item()

    assert told == pytest.approx(loss(answer), rel=1e-6)
    for place in range(len(answer)):
        for moved in (-0.1, 0.1):
            assert told < loss([each + moved * (place == at) for at, each in enumerate(answer)]) - 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["classes", *(pytest.param(each, marks=pytest.mark.slow) for each in [*TARGETS][1:])]
)
def test_curves_say_whose_they_are(case):
    require("plots")
    from privypurse.runs.curves import curves

    history = [{"step": step, "learning_rate": 0.1, "loss": 1.0} for step in (0, 5)]
    svg = curves(history, measured(case, "released"))
    assert "Records that were released before" in svg
    assert "loss while it trains" in svg
    assert "calibration" in svg
    assert ("ROC" in svg) == (case in ("classes", "flags"))
    assert svg == curves(history, measured(case, "released"))


def test_without_matplotlib_a_run_with_plots_is_refused_before_it_begins(monkeypatch):
    import sys

    import privypurse as pp
    from privypurse.runs.curves import require_matplotlib

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(pp.InvalidInput, match=r"plots needs matplotlib.*'\.\[plots\]'"):
        require_matplotlib()
