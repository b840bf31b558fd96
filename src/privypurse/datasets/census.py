"""The Adult census data, which ships with the package."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from importlib import resources

import numpy as np

from privypurse.arrays import AnyArray, IntArray
from privypurse.datasets.encoder import Encoder
from privypurse.datasets.encoding import Categories, Encoding, Features, Range
from privypurse.errors import InvalidInput

_FILE = "adult.csv.bz2"
_SHA256 = "ccc9bda1867ee18d6ddf3315b92b78da423d7434cc9bf046b52013b8be8c21ba"
_TRAIN = 32_561


def _listed(names: str) -> Categories:
    return Categories(tuple(names.split()), other=False, indicator=False)


def _complete(low: float, high: float, log: bool = False) -> Range:
    return Range(low, high, log, indicator=False)


# Categories as listed in the description of the data (adult.names), "?" for unknown among them. Ranges: people over
# 16, with ages above 90 not told apart; a week of at most 99 hours; schooling in 16 steps; round numbers for amounts
# of dollars. No cell is empty, so nothing stands for one. Nothing here was taken from the records. Two columns are
# left out: fnlwgt, which says how many people a record stands for and nothing of the person, and education, whose
# steps education_num counts.
ADULT_ENCODING: dict[str, Encoding] = {
    "age": _complete(17, 90),
    "education_num": _complete(1, 16),
    "hours_per_week": _complete(1, 99),
    "capital_gain": _complete(0, 100_000, log=True),
    "capital_loss": _complete(0, 10_000, log=True),
    "workclass": _listed(
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked ?"
    ),
    "marital_status": _listed(
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"
    ),
    "occupation": _listed(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv "
        "Armed-Forces ?"
    ),
    "relationship": _listed("Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    "race": _listed("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    "sex": _listed("Female Male"),
    "native_country": _listed(
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece "
        "South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
        "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
        "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands ?"
    ),
}


@dataclass(frozen=True, eq=False)
class Adult:
    """48,842 people of the 1994 US census (Becker & Kohavi 1996, UCI, CC BY 4.0); the first 32,561 for training."""

    columns: dict[str, AnyArray]

    @property
    def people(self) -> int:
        return int(self.columns["age"].size)

    @property
    def train(self) -> slice:
        return slice(0, _TRAIN)

    @property
    def test(self) -> slice:
        return slice(_TRAIN, self.people)

    def features(self) -> Features:
        """Everybody's columns as numbers, float32[people, d], by public constants: a row depends on that row alone.

        Numbers lie in [-1, 1], amounts of dollars on a logarithmic scale in [0, 1], and every category has a column
        of 0 and 1.
        """
        return Encoder(ADULT_ENCODING).encode(self.columns)

    def labels(self) -> IntArray:
        """1 for an income above 50,000 dollars, else 0."""
        return np.asarray(self.columns["income"] == ">50K", dtype=np.int64)


def adult() -> Adult:
    """The Adult census data, from inside the package. Text columns keep their ``?`` for missing."""
    import pyarrow as pa
    import pyarrow.csv

    packed = resources.files("privypurse.data").joinpath(_FILE).read_bytes()
    if hashlib.sha256(packed).hexdigest() != _SHA256:
        raise InvalidInput(f"{_FILE} inside the package is damaged; install privypurse again")
    table = pyarrow.csv.read_csv(pa.CompressedInputStream(io.BytesIO(packed), "bz2"))
    return Adult({name: np.asarray(table[name].to_numpy()) for name in table.column_names})
