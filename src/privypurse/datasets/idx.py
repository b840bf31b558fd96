"""MNIST and Fashion-MNIST, which come as gzipped IDX files."""

from __future__ import annotations

import gzip

import numpy as np

from privypurse.arrays import AnyArray
from privypurse.datasets.folders import check, file_of
from privypurse.datasets.images import Images
from privypurse.errors import InvalidInput

_PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
# Of the unpacked bytes: archives of the same data differ.
_SHA256 = {
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


def mnist(name: str = "MNIST") -> Images:
    """MNIST (LeCun et al. 1998) or, by name "FashionMNIST", Fashion-MNIST (Xiao et al. 2017), 28 × 28 grey values."""
    if name not in _SHA256:
        raise InvalidInput(f"name is {name!r}; choose one of {', '.join(map(repr, _SHA256))}")
    parts = []
    for part, expected in zip(_PARTS, _SHA256[name], strict=True):
        path = file_of(name, "the four .gz files", name, "raw", f"{part}.gz")
        try:
            raw = gzip.decompress(path.read_bytes())
        except (OSError, EOFError) as error:
            raise InvalidInput(f"{path} cannot be unpacked ({error}); get it anew") from None
        check(raw, expected, path, name)
        parts.append(_idx(raw))
    return Images(*parts)


def _idx(raw: bytes) -> AnyArray:
    """The array in an IDX file of unsigned bytes."""
    dimensions = raw[3]
    shape = np.frombuffer(raw, dtype=">u4", count=dimensions, offset=4)
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape.tolist())
