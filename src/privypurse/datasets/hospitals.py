"""UCI Heart Disease: the patients of four hospitals, which never pooled their files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privypurse.arrays import AnyArray, FloatArray
from privypurse.datasets.encoder import Encoder
from privypurse.datasets.encoding import Encoding, Features, Range
from privypurse.datasets.folders import check, file_of

COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
OFTEN_MISSING = ("slope", "ca", "thal")
"""What most hospitals did not measure; studies of all four leave these columns out."""

_SHA256 = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}


RANGES: dict[str, Encoding] = {
    column: Range(low, high, indicator=False)
    for column, (low, high) in {
        "age": (0, 100),
        "sex": (0, 1),
        "cp": (1, 4),
        "trestbps": (80, 200),
        "chol": (0, 600),
        "fbs": (0, 1),
        "restecg": (0, 2),
        "thalach": (60, 220),
        "exang": (0, 1),
        "oldpeak": (-3, 7),
    }.items()
}
"""Where a column lies, in round numbers that anybody might have written down beforehand."""


@dataclass(frozen=True, eq=False)
class Hospital:
    """The patients of one hospital; numbers by column, NaN where one is missing."""

    name: str
    columns: dict[str, FloatArray]

    @property
    def labels(self) -> AnyArray:
        """1 for heart disease (num > 0), else 0."""
        return (self.columns["num"] > 0).astype(np.int64)

    def features(self) -> Features:
        """The complete patients' columns as numbers in [-1, 1], by public ranges: a row depends on that row alone."""
        some = self.complete()
        return Encoder(RANGES).encode({name: self.columns[name][some] for name in RANGES})

    def complete(self, without: Collection[str] = OFTEN_MISSING) -> npt.NDArray[np.bool_]:
        """Which patients have a number in every column but those ``without`` which one gets along."""
        wanted = [column for name, column in self.columns.items() if name not in without]
        return np.asarray(~np.isnan(np.stack(wanted)).any(axis=0))


def heart_disease() -> dict[str, Hospital]:
    """The four hospitals (Janosi, Steinbrunn, Pfisterer, Detrano 1988; UCI, CC BY 4.0) by name: silos, not a pool.

    A cholesterol of 0, as everywhere in Switzerland, means that it was not measured; it is left as it stands there.
    """
    return {name: _hospital(name, sha256) for name, sha256 in _SHA256.items()}


def _hospital(name: str, sha256: str) -> Hospital:
    files = ", ".join(f"processed.{each}.data" for each in _SHA256)
    path = file_of("Heart Disease", files, "heart_disease", f"processed.{name}.data")
    raw = path.read_bytes()
    check(raw, sha256, path, "Heart Disease")
    rows = [line.split(",") for line in raw.decode("ascii").split()]
    values = np.array([[np.nan if cell == "?" else float(cell) for cell in row] for row in rows])
    return Hospital(name, dict(zip(COLUMNS, values.T.copy(), strict=True)))
