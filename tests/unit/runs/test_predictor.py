"""A model put together again from its folder: equal answers for every kind of frame, and what is refused."""

import json
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

import privypurse as pp
from privypurse.datasets.encoder import Encoder
from privypurse.datasets.encoding import Categories, Flag, Range
from privypurse.datasets.targets import Classes, Flags, Number
from privypurse.runs.config import Model
from privypurse.runs.folder import RunFolder
from privypurse.runs.models import mlp
from privypurse.runs.predictor import add_network
from privypurse.runs.training_run import add_model

COLUMNS = {"age": Range(0, 100), "town": Categories(("Oslo", "Rome")), "member": Flag()}
ROWS = {
    "age": [30.0, 150.0, math.nan, 55.5],
    "town": ["Rome", "Oslo", None, "Paris"],
    "member": [True, False, None, True],
    "not asked for": [1, 2, 3, 4],
}
# By hand: age and whether it is missing; Oslo, Rome, other, missing; member and whether that is missing.
FEATURES = np.array(
    [
        [-0.4, 0, 0, 1, 0, 0, 1, 0],
        [1.0, 0, 1, 0, 0, 0, 0, 0],
        [0.0, 1, 0, 0, 0, 1, 0.5, 1],
        [0.11, 0, 0, 0, 1, 0, 1, 0],
    ]
)
TARGETS = {
    "classes": Classes("answer", ("no", "yes", "perhaps")),
    "number": Number("income", Range(1000, 5000)),
    "log number": Number("income", Range(10, 90_000, log=True)),
    "flags": Flags(("a", "b")),
}


def written(path, target, public=True, hidden=(4,)):
    """A folder with a network of random parameters, and these."""
    encoder = Encoder(COLUMNS, target)
    torch.manual_seed(31)  # by which all three classes are predicted
    model = mlp((encoder.width,), target.outputs, hidden)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 1.5)
    folder = RunFolder.begin(path, "train")
    add_network(folder, Model("mlp", hidden), (encoder.width,), target.outputs, encoder, public=public)
    add_model(folder, model, public=public)
    return {name: value.numpy().astype(float) for name, value in model.state_dict().items()}


def outputs_by_hand(state):
    hidden = np.maximum(FEATURES @ state["1.weight"].T + state["1.bias"], 0)
    return hidden @ state["3.weight"].T + state["3.bias"]


@pytest.fixture
def run(tmp_path):
    written(tmp_path / "run", TARGETS["classes"])
    return tmp_path / "run"


def test_classes_by_hand(tmp_path):
    outputs = outputs_by_hand(written(tmp_path, TARGETS["classes"]))
    loaded = pp.load(tmp_path)
    shares = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    assert loaded.predict_proba(ROWS) == pytest.approx(shares, abs=1e-6)
    assert loaded.predict(ROWS).tolist() == [("no", "yes", "perhaps")[place] for place in outputs.argmax(1)]
    assert len(set(loaded.predict(ROWS).tolist())) > 1
    assert loaded.names == ["no", "yes", "perhaps"]
    assert loaded.encoder == Encoder(COLUMNS, TARGETS["classes"])


def test_a_number_by_hand(tmp_path):
    outputs = outputs_by_hand(written(tmp_path, TARGETS["number"]))[:, 0]
    loaded = pp.load(tmp_path)
    assert loaded.predict(ROWS) == pytest.approx([1000 + 2000 * (1 + min(max(out, -1), 1)) for out in outputs])
    with pytest.raises(pp.InvalidInput, match="has no probabilities; call predict"):
        loaded.predict_proba(ROWS)


def test_a_number_on_a_logarithmic_scale_by_hand(tmp_path):
    outputs = outputs_by_hand(written(tmp_path, TARGETS["log number"]))[:, 0]
    expected = [10 + math.expm1(min(max(out, 0), 1) * math.log(1 + 89_990)) for out in outputs]
    assert pp.load(tmp_path).predict(ROWS) == pytest.approx(expected, rel=1e-4)


def test_flags_by_hand(tmp_path):
    outputs = outputs_by_hand(written(tmp_path, TARGETS["flags"]))
    loaded = pp.load(tmp_path)
    assert loaded.predict_proba(ROWS) == pytest.approx(1 / (1 + np.exp(-outputs)), abs=1e-6)
    assert loaded.predict(ROWS).tolist() == (outputs > 0).tolist()
    assert loaded.said(np.array([[0.51, 0.49]], np.float32)).tolist() == [[True, False]]


class ArrowOnly:
    """What shows itself to others by Arrow's interface alone."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


class OwnMapping(Mapping):
    def __init__(self, columns):
        self._columns = columns

    def __getitem__(self, name):
        return self._columns[name]

    def __iter__(self):
        return iter(self._columns)

    def __len__(self):
        return len(self._columns)


FRAMES = {
    "pandas": pd.DataFrame,
    "pandas of objects": lambda rows: pd.DataFrame(rows, dtype=object),
    "pandas, other order": lambda rows: pd.DataFrame(rows)[["town", "not asked for", "member", "age"]],
    "pyarrow": pa.table,
    "a batch of pyarrow": lambda rows: pa.table(rows).to_batches()[0],
    "arrays": lambda rows: {name: np.array(cells, dtype=object) for name, cells in rows.items()},
    "arrow's interface alone": lambda rows: ArrowOnly(pa.table(rows)),
    "a mapping": OwnMapping,
    "text, as of a file": lambda rows: {
        name: ["" if cell is None or cell != cell else str(cell) for cell in cells] for name, cells in rows.items()
    },
}


@pytest.mark.parametrize("kind", FRAMES)
def test_every_kind_of_frame_gives_the_same(run, kind):
    loaded = pp.load(run)
    assert (loaded.predict_proba(FRAMES[kind](ROWS)) == loaded.predict_proba(ROWS)).all()


def test_answers_do_not_depend_on_the_rows_beside_them(run):
    loaded = pp.load(run)
    many = pa.table(ROWS).take(np.arange(9000) % 4)  # more than one batch
    assert np.allclose(loaded.predict_proba(many), np.tile(loaded.predict_proba(ROWS), (2250, 1)), rtol=0, atol=1e-6)
    assert loaded.predict_proba({name: [] for name in ROWS}).shape == (0, 3)


def test_dropout_is_off_whatever_mode_the_model_was_left_in(run):
    loaded = pp.load(run)
    before = loaded.predict_proba(ROWS)
    loaded.model.append(nn.Dropout(0.5))
    loaded.model.train()
    assert (loaded.predict_proba(ROWS) == before).all()


@pytest.mark.parametrize("frame", [[[1.0, 2.0]], 7, None, "people.csv"])
def test_what_is_no_frame_is_refused(run, frame):
    with pytest.raises(pp.InvalidInput, match=r"frame is a|no column 'age'"):
        pp.load(run).predict(frame)


def test_a_missing_column_is_named(run):
    with pytest.raises(pp.InvalidInput, match="'town'"):
        pp.load(run).predict({"age": [1], "member": [True]})


def test_the_public_files_alone_are_enough(run, tmp_path):
    there = RunFolder.open(run)
    there.add("plan.json", "secret")
    for name in ("public.json", *(name for name, file in there.files.items() if file.public)):
        (tmp_path / "passed on").mkdir(exist_ok=True)
        (tmp_path / "passed on" / name).write_bytes((run / name).read_bytes())
    assert (pp.load(tmp_path / "passed on").predict_proba(ROWS) == pp.load(run).predict_proba(ROWS)).all()
    assert not (tmp_path / "passed on" / "plan.json").exists()


@pytest.mark.parametrize("name", ["model.pt", "model.json", "encoder.json"])
def test_a_changed_file_is_refused_by_name(run, name):
    content = (run / name).read_bytes()
    (run / name).write_bytes(content.replace(b"100", b"999").replace(b"mlp", b"cnn") + b" ")
    with pytest.raises(pp.InvalidInput, match=f"{name} was changed after this run wrote it"):
        pp.load(run)


def test_a_run_that_did_not_end_is_told(tmp_path):
    RunFolder.begin(tmp_path, "train").add("plan.json", "{}")
    with pytest.raises(pp.InvalidInput, match=r"holds no model.pt.*when a run ends"):
        pp.load(tmp_path)
    with pytest.raises(pp.InvalidInput, match="is no run's folder"):
        pp.load(tmp_path / "nothing")


def altered(run, name, change):
    """The file as somebody changed it who knew about the lists."""
    folder = RunFolder.open(run)
    content = json.loads((run / name).read_text(encoding="utf-8"))
    change(content)
    folder.add_json(name, content, public=True)


def test_code_of_others_is_run_only_where_it_is_trusted(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def build(width):\n"
        "    open('called', 'w').close()\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, width), torch.nn.ReLU(),\n"
        "        torch.nn.Linear(width, 3))\n",
        encoding="utf-8",
    )
    before = pp.load(run).predict_proba(ROWS)
    altered(run, "model.json", lambda content: content["network"].update(kind="mine:build", options={"width": 4}))
    with pytest.raises(pp.InvalidInput, match=r"'mine:build'.*trust_code=True"):
        pp.load(run)
    assert not (tmp_path / "called").exists()
    assert (pp.load(run, trust_code=True).predict_proba(ROWS) == before).all()
    assert (tmp_path / "called").exists()


REFUSED = {
    "another schema": ("model.json", lambda content: content.update(schema=2), "schema number 2"),
    "an unknown key": ("model.json", lambda content: content.update(more=1), "changed or damaged"),
    "another width": ("model.json", lambda content: content.update(shape=[9]), "not of one run"),
    "another network": (
        "model.json",
        lambda content: content["network"].update(hidden=[5]),
        "does not hold the parameters",
    ),
    "another encoder": ("encoder.json", lambda content: content.update(version=9), "version 9"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_do_not_go_together_are_refused(run, case):
    name, change, said = REFUSED[case]
    altered(run, name, change)
    with pytest.raises(pp.InvalidInput, match=said):
        pp.load(run)


def test_parameters_that_hold_code_are_refused(run):
    class Harm:
        def __reduce__(self):
            return (print, ("harm",))

    RunFolder.open(run).add("model.pt", lambda file: torch.save({"1.weight": Harm()}, file), public=True)
    with pytest.raises(pp.InvalidInput, match=r"more than tensors.* never read as code") as caught:
        pp.load(run)
    assert "weights_only" not in str(caught.value)  # torch advises to execute it all the same


def test_a_model_of_images_takes_arrays(tmp_path):
    model = mlp((1, 2, 2), 3)
    folder = RunFolder.begin(tmp_path, "train")
    add_network(folder, Model("mlp"), (1, 2, 2), 3, None, public=True)
    add_model(folder, model, public=True)
    loaded = pp.load(tmp_path)
    images = np.linspace(0, 1, 20, dtype=np.float32).reshape(5, 1, 2, 2)
    expected = torch.softmax(model(torch.as_tensor(images)), 1).argmax(1)
    assert loaded.predict(images).tolist() == [str(each) for each in expected.tolist()]
    with pytest.raises(pp.InvalidInput, match=r"shape \(5, 4\).*float32\[n, 1, 2, 2\]"):
        loaded.predict(images.reshape(5, 4))
