"""CIFAR-10 as lossless WebP sheets of 100 × 100 images, about half the size of its archive."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from privypurse.arrays import AnyArray
from privypurse.datasets.folders import check, file_of
from privypurse.datasets.images import Images
from privypurse.errors import InvalidInput

_NAME, _FOLDER = "CIFAR-10", "cifar10"
_FILES = "train_1.webp … train_5.webp, test.webp and labels.npz"
# Of the pixels, image after image, and of the labels: encoders of the same images differ.
_SHA256 = {
    "train_1": "fc115a3de050d667b88cbd5b0b9612ebf996c54230fe7758f3a14bb5af9a1c27",
    "train_2": "89e609b642f687bc796fa3bfa4211005582a0e8131d463d996d11ddb297d312e",
    "train_3": "93a365823e61729490a8801d80864ccd0ab1e8c98f19d71af65644d1c5f1486e",
    "train_4": "809eb95ecd057a36516318f5023ea619009dd70dd38193db9da43125a928e6fa",
    "train_5": "d05b7d66d216d6df882cc760cdc0ff2f1f0437abf699ed16005c021ef0add9cb",
    "test": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
}
_LABELS_SHA256 = {
    "train": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}
_SIDE = 100  # images in a row of a sheet, and rows
_PIXELS = 32


def cifar10(sheets: int = 5) -> Images:
    """CIFAR-10 (Krizhevsky 2009): 32 × 32 colour images of ten kinds of things. Needs Pillow (extra ``images``).

    ``sheets`` of 10,000 images each are read for training, in the original order.
    """
    if isinstance(sheets, bool) or not isinstance(sheets, int) or not 1 <= sheets <= 5:
        raise InvalidInput(f"sheets is {sheets!r}; there are 5")
    train = np.concatenate([_sheet(f"train_{number}") for number in range(1, sheets + 1)])
    return Images(train, _labels("train")[: len(train)], _sheet("test"), _labels("test"))


def _sheet(part: str) -> AnyArray:
    path = file_of(_NAME, _FILES, _FOLDER, f"{part}.webp")
    pixels = _pixels(path)
    side = _SIDE * _PIXELS
    if pixels.shape != (side, side, 3):
        raise InvalidInput(f"{path} is no sheet of 100 × 100 images: its shape is {pixels.shape}; get it anew")
    cut = pixels.reshape(_SIDE, _PIXELS, _SIDE, _PIXELS, 3).swapaxes(1, 2).reshape(-1, _PIXELS, _PIXELS, 3)
    check(cut.tobytes(), _SHA256[part], path, _NAME)
    return cut


def _pixels(path: Path) -> AnyArray:
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError:
        raise InvalidInput(f"reading {path} needs Pillow: pip install 'privypurse[images]'") from None
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise InvalidInput(f"{path} cannot be read as an image ({error}); get it anew") from None


def _labels(part: str) -> AnyArray:
    path = file_of(_NAME, _FILES, _FOLDER, "labels.npz")
    try:
        with np.load(path) as arrays:
            labels = np.asarray(arrays[part], dtype=np.uint8)
    except (ValueError, OSError, KeyError) as error:
        raise InvalidInput(f"{path} holds no labels ({error}); get it anew") from None
    check(labels.tobytes(), _LABELS_SHA256[part], path, _NAME)
    return labels
