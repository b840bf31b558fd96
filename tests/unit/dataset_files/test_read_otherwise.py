"""Frames whose reader made of cells something else than the file holds: what they cannot say to a model."""

import io
import warnings

import pandas as pd
import pyarrow as pa
import torch
from torch import nn

from privypurse.datasets.encoder import Encoder
from privypurse.datasets.encoding import Categories, Range
from privypurse.datasets.read_otherwise import lost_words
from privypurse.errors import PrivyPurseWarning
from privypurse.runs.predictor import Predictor

FILE = "age,member,code,grade\n30,True,01,A\n40,False,02,NA\n50,True,10,null\n"
ENCODER = Encoder(
    {
        "age": Range(18, 90),
        "member": Categories(("True", "False")),
        "code": Categories(("01", "02", "10")),
        "grade": Categories(("A", "NA", "null")),
    }
)
AS_TEXT = {"dtype": str, "keep_default_na": False}


def frame(**how):
    return pd.read_csv(io.StringIO(FILE), **how)


def predictor():
    model = nn.Sequential(nn.Linear(ENCODER.width, 1))
    return Predictor(model, ENCODER, (ENCODER.width,), 1)


def test_what_a_reader_took_away_is_named_by_column() -> None:
    assert lost_words(frame(**AS_TEXT), ENCODER) == {}
    assert lost_words(frame(), ENCODER) == {
        "member": ["True", "False"],
        "code": ["01", "02"],
        "grade": ["NA", "null"],
    }
    assert lost_words({"age": [1], "member": ["True"], "code": ["01"], "grade": ["NA"]}, ENCODER) == {}
    assert lost_words(pa.Table.from_pandas(frame()), ENCODER) == {}  # known of pandas alone
    whole = Encoder({"code": Categories(("1", "2", "10")), "grade": Categories(("A", "B"))}, missing=("NA", "null"))
    assert lost_words(frame(), whole) == {}  # nothing is lost where NA is to be missing and codes are plain


def test_predictions_of_such_a_frame_come_with_a_warning() -> None:
    answers = predictor()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_text = answers.inputs(frame(**AS_TEXT))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        otherwise = answers.inputs(frame())
    assert [each.category for each in said] == [PrivyPurseWarning] * 3
    assert "'code' of frame cannot say '01', '02'" in str(said[1].message)
    assert "keep_default_na=False" in str(said[1].message)
    assert not torch.equal(
        torch.as_tensor(as_text), torch.as_tensor(otherwise)
    )  # without a word it was another model
