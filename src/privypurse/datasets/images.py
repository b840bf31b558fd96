"""Image data sets from a folder of the user's, checked before use: MNIST, Fashion-MNIST, CIFAR-10 and SVHN."""

from __future__ import annotations

import gzip
import io
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from privypurse._validate import integer, one_of
from privypurse.arrays import AnyArray
from privypurse.datasets.folders import check, file_of
from privypurse.errors import InvalidInput

_PIXELS = 32
_ROW = 100  # images in a row of a sheet


@dataclass(frozen=True, eq=False)
class Images:
    """Images and their labels, unsigned bytes, for training and for testing.

    Grey images are [n, height, width], colour images [n, height, width, 3].
    """

    train_images: AnyArray
    train_labels: AnyArray
    test_images: AnyArray
    test_labels: AnyArray


def mnist(name: str = "MNIST") -> Images:
    """MNIST (LeCun et al. 1998) or, by name "FashionMNIST", Fashion-MNIST (Xiao et al. 2017), 28 × 28 grey values."""
    one_of(name, "name", ("MNIST", "FashionMNIST"))
    arrays = []
    for part, sha256 in _known(name).items():
        path = file_of(name, "the four .gz files", name, "raw", f"{part}.gz")
        try:
            raw = gzip.decompress(path.read_bytes())
        except (OSError, EOFError) as error:
            raise InvalidInput(f"{path} cannot be unpacked ({error}); get it anew") from None
        check(raw, sha256, path, name)
        # An IDX file of unsigned bytes: the number of dimensions, their sizes, the values.
        shape = np.frombuffer(raw, dtype=">u4", count=raw[3], offset=4)
        arrays.append(np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * raw[3]).reshape(shape.tolist()))
    return Images(*arrays)


def svhn(md5: Mapping[str, str] | None = None) -> Images:
    """SVHN (Netzer et al. 2011): 32 × 32 colour images of house numbers, labels 0 … 9, from its MATLAB files.

    ``md5`` says which files are accepted; by default those that were published and no others.
    """
    from scipy.io import loadmat

    arrays = []
    for name, checksum in (md5 or _known("svhn")["mat"]).items():
        path = file_of("SVHN", "train_32x32.mat and test_32x32.mat", "svhn", name)
        raw = path.read_bytes()
        check(raw, checksum, path, "SVHN", "md5")  # before a parser of binary files sees it
        found = loadmat(io.BytesIO(raw))
        images = np.ascontiguousarray(np.moveaxis(found["X"], -1, 0))  # there it is [height, width, 3, n]
        arrays += [images, (found["y"].ravel() % 10).astype(np.uint8)]  # there the digit 0 is called 10
    return Images(*arrays)


def cifar10(sheets: int = 5) -> Images:
    """CIFAR-10 (Krizhevsky 2009): 32 × 32 colour images of ten kinds of things. Needs Pillow (extra ``images``).

    ``sheets`` of 10,000 images each are read for training, in the original order.
    """
    files = "train_1.webp … train_5.webp, test.webp and labels.npz"
    return _from_sheets("cifar10", "CIFAR-10", files, integer(sheets, "sheets", most=5))


def svhn_rebuilt() -> Images:
    """SVHN (Netzer et al. 2011) cut anew from the full pictures; `svhn` reads the published crops.

    Same order and labels; values lie within 3 of 255 of the published ones, so say "rebuilt" beside figures. Needs
    Pillow (extra ``images``).
    """
    files = "train_1.webp … train_8.webp, test_1.webp … test_3.webp and labels.npz"
    return _from_sheets("svhn", "SVHN, rebuilt", files, 8)


def channels_first(pixels: AnyArray) -> AnyArray:
    """Images as torch wants them: [n, channels, height, width]."""
    return pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, -1, 1)


def _known(name: str) -> dict[str, Any]:
    """How many images there are and their checksums, by file."""
    text = resources.files("privypurse.datasets").joinpath("images.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)[name])


def _from_sheets(folder: str, name: str, files: str, sheets: int) -> Images:
    """Lossless WebP sheets, 100 images a row, which take half the room of the archives; so many for training."""
    known, arrays = _known(folder), []
    for part in ("train", "test"):
        wanted = list(known[part])[: sheets if part == "train" else None]
        read = [_sheet(file_of(name, files, folder, f"{each}.webp"), name, *known[part][each]) for each in wanted]
        images = np.concatenate(read)
        path = file_of(name, files, folder, "labels.npz")
        try:
            with np.load(path) as stored:
                labels = np.asarray(stored[part], dtype=np.uint8)
        except (ValueError, OSError, KeyError) as error:
            raise InvalidInput(f"{path} holds no labels ({error}); get it anew") from None
        check(labels.tobytes(), known["labels"][part], path, name)
        arrays += [images, labels[: len(images)]]
    return Images(*arrays)


def _sheet(path: Path, name: str, images: int, sha256: str) -> AnyArray:
    """The images of a sheet, whose last row may be filled up with black ones."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError:
        raise InvalidInput(f"reading {path} needs Pillow: pip install '.[images]' in a clone") from None
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise InvalidInput(f"{path} cannot be read as an image ({error}); get it anew") from None
    rows = -(-images // _ROW)
    if pixels.shape != (rows * _PIXELS, _ROW * _PIXELS, 3):
        raise InvalidInput(f"{path} is no sheet of {rows} × {_ROW} images: its shape is {pixels.shape}; get it anew")
    cut = pixels.reshape(rows, _PIXELS, _ROW, _PIXELS, 3).swapaxes(1, 2).reshape(-1, _PIXELS, _PIXELS, 3)[:images]
    check(cut.tobytes(), sha256, path, name)
    return cut
