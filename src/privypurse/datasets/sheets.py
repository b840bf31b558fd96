"""Colour images as lossless WebP sheets, 100 images a row, about half the size of the archives: CIFAR-10, SVHN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privypurse.arrays import AnyArray
from privypurse.datasets.folders import check, file_of
from privypurse.datasets.images import Images
from privypurse.errors import InvalidInput

_PIXELS = 32
_ROW = 100  # images in a row of a sheet
_SHEET = 10_000  # images in a full sheet; the last of a part may have fewer, and black ones to fill its last row


@dataclass(frozen=True)
class Sheets:
    """What lies in a folder of sheets: checksums of the pixels, image after image, and of the labels.

    Not of the files, since encoders of the same images differ.
    """

    name: str
    folder: str
    files: str
    train: Mapping[str, tuple[int, str]]
    """For every sheet, how many images and their sha256."""
    test: Mapping[str, tuple[int, str]]
    labels: Mapping[str, str]

    def read(self, sheets: int) -> Images:
        """All that there is for testing, and that many sheets for training, in the original order."""
        train = np.concatenate([self._sheet(part, *self.train[part]) for part in list(self.train)[:sheets]])
        test = np.concatenate([self._sheet(part, *known) for part, known in self.test.items()])
        return Images(train, self._labels("train")[: len(train)], test, self._labels("test"))

    def _sheet(self, part: str, images: int, sha256: str) -> AnyArray:
        path = file_of(self.name, self.files, self.folder, f"{part}.webp")
        pixels = _pixels(path)
        rows = -(-images // _ROW)
        if pixels.shape != (rows * _PIXELS, _ROW * _PIXELS, 3):
            raise InvalidInput(
                f"{path} is no sheet of {rows} × {_ROW} images: its shape is {pixels.shape}; get it anew"
            )
        cut = pixels.reshape(rows, _PIXELS, _ROW, _PIXELS, 3).swapaxes(1, 2).reshape(-1, _PIXELS, _PIXELS, 3)[:images]
        check(cut.tobytes(), sha256, path, self.name)
        return cut

    def _labels(self, part: str) -> AnyArray:
        path = file_of(self.name, self.files, self.folder, "labels.npz")
        try:
            with np.load(path) as arrays:
                labels = np.asarray(arrays[part], dtype=np.uint8)
        except (ValueError, OSError, KeyError) as error:
            raise InvalidInput(f"{path} holds no labels ({error}); get it anew") from None
        check(labels.tobytes(), self.labels[part], path, self.name)
        return labels


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


_CIFAR10 = Sheets(
    name="CIFAR-10",
    folder="cifar10",
    files="train_1.webp … train_5.webp, test.webp and labels.npz",
    train={
        "train_1": (_SHEET, "fc115a3de050d667b88cbd5b0b9612ebf996c54230fe7758f3a14bb5af9a1c27"),
        "train_2": (_SHEET, "89e609b642f687bc796fa3bfa4211005582a0e8131d463d996d11ddb297d312e"),
        "train_3": (_SHEET, "93a365823e61729490a8801d80864ccd0ab1e8c98f19d71af65644d1c5f1486e"),
        "train_4": (_SHEET, "809eb95ecd057a36516318f5023ea619009dd70dd38193db9da43125a928e6fa"),
        "train_5": (_SHEET, "d05b7d66d216d6df882cc760cdc0ff2f1f0437abf699ed16005c021ef0add9cb"),
    },
    test={"test": (_SHEET, "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04")},
    labels={
        "train": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    },
)

_SVHN = Sheets(
    name="SVHN, rebuilt",
    folder="svhn",
    files="train_1.webp … train_8.webp, test_1.webp … test_3.webp and labels.npz",
    train={
        "train_1": (_SHEET, "e046bb86de7a8732de26a5520158ff1e3731226724af4dfba6ec6e7af02ca643"),
        "train_2": (_SHEET, "1130303e8f5310428894086515fb8d162c78e615543410fea786d2ec22197b7c"),
        "train_3": (_SHEET, "24dde708fc07e9f4adae248e27bc56fa745450fc0bc9c3444132647c2c2df5c3"),
        "train_4": (_SHEET, "625a08309ae3b252492c67791aaa5df24dd6e4ba77de040a1a1cf4e4df85a4e8"),
        "train_5": (_SHEET, "0e18b0c519b925f09ba5810234ef60d8475c4b4ac8b702c553814d9f07172de5"),
        "train_6": (_SHEET, "93655b151435f2b4e9676194e6129fccbc598abbe318745629ae1a8a217b940d"),
        "train_7": (_SHEET, "db282ed226e12aeb42def37b4347b48dfb22db743c1f1e546ef3a9fe9498041a"),
        "train_8": (3_257, "da4b61596a28bc9817f457c023730e13d9bfa45e69072fa2034df4852b4c0cb0"),
    },
    test={
        "test_1": (_SHEET, "2bede2dc43f8322418a5a2854c35b1a90c6c0bdcbbad66aa838ccaea2885aa5b"),
        "test_2": (_SHEET, "0a38e70040e8cc0ba7aa67ad9b1cc31cbdf6ecb917fd157c639aac1ffa7ec26a"),
        "test_3": (6_032, "c2f360d0b8d5312ac2818d7d1c942d83770ce6c549f0ea55b878682a82e385d4"),
    },
    labels={
        "train": "6a6e359bb9ecc6ce40896703f7b224715776155fe39710e0ddb8008a18172c6f",
        "test": "c2488ef300c629f4bd90a3d2a7b4141589e5b5a4f9046845dfc1a9021319e31a",
    },
)


def cifar10(sheets: int = 5) -> Images:
    """CIFAR-10 (Krizhevsky 2009): 32 × 32 colour images of ten kinds of things. Needs Pillow (extra ``images``).

    ``sheets`` of 10,000 images each are read for training, in the original order.
    """
    if isinstance(sheets, bool) or not isinstance(sheets, int) or not 1 <= sheets <= 5:
        raise InvalidInput(f"sheets is {sheets!r}; there are 5")
    return _CIFAR10.read(sheets)


def svhn_rebuilt() -> Images:
    """SVHN (Netzer et al. 2011) cut anew from the full pictures; `svhn` reads the published crops.

    Same order and labels; values lie within 3 of 255 of the published ones, so say "rebuilt" beside figures. Needs
    Pillow (extra ``images``).
    """
    return _SVHN.read(len(_SVHN.train))
