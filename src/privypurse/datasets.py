"""Data sets: the one that ships with the package, and those in a folder of the user's, checked before use."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

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
    import pyarrow as pa
    import pyarrow.csv

    packed = resources.files("privypurse.data").joinpath(_ADULT).read_bytes()
    if hashlib.sha256(packed).hexdigest() != _ADULT_SHA256:
        raise InvalidInput(f"{_ADULT} inside the package is damaged; install privypurse again")
    table = pyarrow.csv.read_csv(pa.CompressedInputStream(io.BytesIO(packed), "bz2"))
    return Adult({name: np.asarray(table[name].to_numpy()) for name in table.column_names})


@dataclass(frozen=True, eq=False)
class Images:
    """Images and their labels, unsigned bytes, for training and for testing."""

    train_images: AnyArray
    train_labels: AnyArray
    test_images: AnyArray
    test_labels: AnyArray


_PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
# Of the unpacked bytes: archives of the same data differ.
_IDX_SHA256 = {
    "MNIST": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "FashionMNIST": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}


def folder() -> Path:
    """Where larger data sets are: $PRIVYPURSE_DATA, else data/ in the working directory."""
    return Path(os.environ.get("PRIVYPURSE_DATA", "data"))


def mnist(name: str = "MNIST") -> Images:
    """MNIST (LeCun et al. 1998) or, by name "FashionMNIST", Fashion-MNIST (Xiao et al. 2017), 28 × 28 grey values."""
    if name not in _IDX_SHA256:
        raise InvalidInput(f"name is {name!r}; choose one of {', '.join(map(repr, _IDX_SHA256))}")
    parts = []
    for part, expected in zip(_PARTS, _IDX_SHA256[name], strict=True):
        path = folder() / name / "raw" / f"{part}.gz"
        if not path.exists():
            raise InvalidInput(
                f"{path} is not there; put the four .gz files of {name} into that folder, or set PRIVYPURSE_DATA to "
                "the folder that holds it"
            )
        raw = gzip.decompress(path.read_bytes())
        if hashlib.sha256(raw).hexdigest() != expected:
            raise InvalidInput(f"{path} is not the canonical file of {name}: its checksum differs; get it anew")
        parts.append(_idx(raw))
    return Images(*parts)


def _idx(raw: bytes) -> AnyArray:
    """The array in an IDX file of unsigned bytes."""
    dimensions = raw[3]
    shape = np.frombuffer(raw, dtype=">u4", count=dimensions, offset=4)
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape.tolist())
