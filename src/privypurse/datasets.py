"""Data sets: the one that ships with the package, checked before it is used."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from importlib import resources

import numpy as np
import pyarrow as pa
import pyarrow.csv

from privypurse.arrays import AnyArray
from privypurse.errors import InvalidInput

_ADULT = "adult.csv.bz2"
_ADULT_SHA256 = "ccc9bda1867ee18d6ddf3315b92b78da423d7434cc9bf046b52013b8be8c21ba"
_ADULT_TRAIN = 32_561


@dataclass(frozen=True, eq=False)
class Adult:
    """48,842 people of the 1994 US census (Becker & Kohavi 1996, UCI, CC BY 4.0); the first 32,561 for training."""

    columns: dict[str, AnyArray]

    @property
    def people(self) -> int:
        return int(self.columns["age"].size)

    @property
    def train(self) -> slice:
        return slice(0, _ADULT_TRAIN)

    @property
    def test(self) -> slice:
        return slice(_ADULT_TRAIN, self.people)


def adult() -> Adult:
    """The Adult census data, from inside the package. Text columns keep their ``?`` for missing."""
    packed = resources.files("privypurse.data").joinpath(_ADULT).read_bytes()
    if hashlib.sha256(packed).hexdigest() != _ADULT_SHA256:
        raise InvalidInput(f"{_ADULT} inside the package is damaged; install privypurse again")
    table = pyarrow.csv.read_csv(pa.CompressedInputStream(io.BytesIO(packed), "bz2"))
    return Adult({name: np.asarray(table[name].to_numpy()) for name in table.column_names})
