"""The encoder: a table by its public constants, and its file, read strictly."""

import datetime
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import privypurse as pp
from privypurse.datasets import Categories, Dates, Encoder, Flag, Range
from privypurse.datasets.targets import NO_CLASS, Classes, Flags, Number, known

COLUMNS = {
    "kind": Categories(("y", "n")),
    "x": Range(0, 1),
    "since": Dates(datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)),
    "ill": Flag(),
}
TARGETS = [Classes("out", ("low", "high")), Number("out", Range(0, 10)), Flags(("a", "b")), None]
TABLE = {"x": ["0", "-99"], "kind": ["n", "NA"], "since": ["2020-07-02", ""], "ill": ["no", "yes"], "unused": [9, 9]}


def test_columns_stand_in_the_order_of_the_encoder_under_their_names():
    encoder = Encoder(COLUMNS, missing=("NA", "-99.0"))
    assert encoder.features == [
        *("kind = y", "kind = n", "kind is other", "kind is missing", "x", "x is missing"),
        *("since", "since is missing", "ill", "ill is missing"),
    ]
    expected = [[0, 1, 0, 0, -1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 1, 0, 1, 1, 0]]
    numeric = {**TABLE, "x": [0, -99]}
    for table in (TABLE, pd.DataFrame(TABLE), pa.table(TABLE), pa.table(numeric), pd.DataFrame(numeric)):
        assert encoder.encode(table).tolist() == expected
    assert encoder.width == 10


@pytest.mark.parametrize("target", TARGETS)
def test_its_file_reads_back_to_the_same(target):
    encoder = Encoder(COLUMNS, target, missing=("NA",))
    assert Encoder.from_json(encoder.to_json()) == encoder
    whole = json.loads(encoder.to_json())
    assert set(whole["columns"][1]) == {"name", "kind", "low", "high", "log", "indicator"}  # defaults are written out


def test_targets():
    table = {
        "out": ["high", "low", "?", "", "7", "-3", "99"],
        "a": [1, 0, "", 1, 1, 0, 0],
        "b": ["yes", "no", *"?????"],
    }
    classes, number, flags = (Encoder(COLUMNS, target).targets(table) for target in TARGETS[:3])
    assert classes.tolist() == [1, 0, *[NO_CLASS] * 5]
    np.testing.assert_allclose(number[:, 0], [*[np.nan] * 4, 0.4, -1, 1], rtol=1e-6)
    nan = np.nan
    np.testing.assert_equal(flags.tolist(), [[1, 1], [0, 0], [nan, nan], [1, nan], [1, nan], [0, nan], [0, nan]])
    assert [np.flatnonzero(~known(each)).tolist() for each in (classes, number, flags)] == [
        *([2, 3, 4, 5, 6], [0, 1, 2, 3], [2])
    ]
    assert TARGETS[1].decode(np.array([[0.4], [-5.0], [1.0]])).tolist() == pytest.approx([7, 0, 10])
    assert [target.outputs for target in TARGETS[:3]] == [2, 1, 2]


def changed(change):
    whole = json.loads(Encoder(COLUMNS, TARGETS[0]).to_json())
    change(whole)
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no encoder.json"),
        ("[]", "format"),
        (changed(lambda whole: whole.update(version=2)), "version 2, this release knows 1"),
        (changed(lambda whole: whole.update(note="x")), "'note'"),
        (changed(lambda whole: whole.pop("missing")), "'missing'"),
        (changed(lambda whole: whole["columns"][1].update(mean=3)), "column 'x'.*'mean'"),
        (changed(lambda whole: whole["columns"][1].pop("indicator")), "column 'x'.*'indicator'"),
        (changed(lambda whole: whole["columns"][1].update(low="0")), "column 'x'.*cannot be read"),
        (changed(lambda whole: whole["columns"][1].update(low=2)), "low < high"),
        (changed(lambda whole: whole["columns"][1].update(kind="mean")), "'mean'; there are number"),
        (changed(lambda whole: whole["columns"][1].update(name="kind")), "same name"),
        (changed(lambda whole: whole["columns"].reverse()), "features"),
        (changed(lambda whole: whole["target"].update(kind="rank")), "'rank'"),
        (changed(lambda whole: whole["target"].update(classes=["one"])), "at least two"),
        (changed(lambda whole: whole.update(columns=[])), "at least one column"),
    ],
)
def test_another_file_is_refused(text, said):
    with pytest.raises(pp.InvalidInput, match=said):
        Encoder.from_json(text)


@pytest.mark.parametrize("frame", [dict, pd.DataFrame, pa.table])
def test_a_column_that_is_not_there_is_named_and_no_cell_is(frame):
    table = frame({"kind": ["SECRET"], "since": ["SECRET"], "ill": ["SECRET"]})
    with pytest.raises(pp.InvalidInput, match="no column 'x'") as caught:
        Encoder(COLUMNS).encode(table)
    assert "SECRET" not in str(caught.value)


def test_what_does_not_fit_together_is_named():
    with pytest.raises(pp.InvalidInput, match=r"different lengths \(kind 1, x 2"):
        Encoder(COLUMNS).encode({**TABLE, "kind": ["y"]})
    with pytest.raises(pp.InvalidInput, match="'x', which is what is to be learned"):
        Encoder(COLUMNS, Number("x", Range(0, 1)))
    with pytest.raises(pp.InvalidInput, match="without a target"):
        Encoder(COLUMNS).targets(TABLE)
    for labels in ((), ("a", "a")):
        with pytest.raises(pp.InvalidInput, match="none twice"):
            Flags(labels)
