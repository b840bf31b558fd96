"""Runs by every method, with filters, caps, epochs and seeds, fit what they claim when they are looked at again."""

import json

import pytest

import privypurse as pp
from privypurse.runs.config import example, parse_config
from privypurse.runs.folder import RunFolder
from privypurse.runs.training_run import train_by
from run_folders import trained

pytestmark = pytest.mark.slow

KINDS = {
    "scale": {"plan": 'method = "scale"'},
    "uniform": {"plan": 'method = "uniform"'},
    "exclude": {"plan": 'method = "exclude"\nthreshold = 1.5'},
    "curve-fit": {"plan": 'method = "curve-fit"'},
    "a filter": {
        "plan": 'extra_steps = 5\nstop = { kind = "few", below = 2, epsilon = 0.1 }',
        "more": "[individual]\nevery = 2",
    },
    "epochs": {"plan": "epochs = 2"},
    "a cap": {"plan": "at_most = 1.5\nnoise_multiplier = 3.0"},
    "a seed": {"training": "seed = 1"},
    "history": {"training": "validate_every = 2", "measured": "people"},
}


@pytest.mark.filterwarnings("ignore:.*seed:privypurse.errors.PrivyPurseWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_every_kind_fit(tmp_path, kind):
    found = pp.verify(trained(tmp_path, **KINDS[kind]), table=tmp_path / "people.csv")
    assert found.sound, str(found)
    assert {"certified ε", "grants", "table", "facts", "levels"} <= {each.what for each in found.of("fits")}
    assert ("promise" in {each.what for each in found.of("not checked")}) == (kind == "a seed")


def test_simulated_budgets_are_drawn_again(tmp_path):
    text = example().replace("steps = 1000", "steps = 3").replace('accountant = "pld"', 'accountant = "rdp"')
    run = train_by(parse_config(text.replace('out = "privypurse-run"', f'out = "{tmp_path}/run"'))).folder
    assert {each.what for each in pp.verify(run).of("fits")} >= {"grants", "certified ε"}
    config = (run / "config.toml").read_text(encoding="utf-8")
    (run / "config.toml").write_text(config.replace("seed = 0 }", "seed = 1 }"), encoding="utf-8")
    assert {each.what for each in pp.verify(run).of("does not fit")} == {"files", "grants"}


@pytest.mark.parametrize(
    ("key", "value"), [("accuracy", 0.999), ("records", 6), ("measured", "released"), ("history", [])]
)
def test_a_figure_of_the_test_that_was_edited_is_seen(tmp_path, key, value):
    """test.json may be shown, so whoever makes it better is found by metrics.json."""
    folder = RunFolder.open(trained(tmp_path, training="validate_every = 2"))
    assert pp.verify(folder.path).sound
    content = json.loads((folder.path / "test.json").read_text(encoding="utf-8"))
    folder.add_json("test.json", {**content, key: value}, public=True)
    assert {each.what for each in pp.verify(folder.path).of("does not fit")} == {"test"}


def test_figures_of_people_who_were_not_charged_are_not_shown(tmp_path):
    folder = RunFolder.open(trained(tmp_path, measured="people"))
    assert pp.verify(folder.path).sound
    folder.add("test.json", None, public=True)
    assert {each.what for each in pp.verify(folder.path).of("does not fit")} == {"what is shown"}


@pytest.mark.filterwarnings("ignore:.*seed:privypurse.errors.PrivyPurseWarning")
def test_nothing_of_a_seeded_run_is_shown(tmp_path):
    folder = RunFolder.open(trained(tmp_path, training="seed = 1"))
    folder.add("model.pt", None, public=True)
    assert {each.what for each in pp.verify(folder.path).of("does not fit")} == {"what is shown"}
