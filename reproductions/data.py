"""The papers' data sets as arrays, the part of them that choosing may look at, and images that nobody took."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from privypurse import datasets
from privypurse._validate import one_of
from privypurse.errors import InvalidInput, PrivyPurseError

SHAPES: dict[str, tuple[int, ...]] = {
    "mnist": (1, 28, 28),
    "fashion-mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "svhn": (3, 32, 32),
    "svhn-rebuilt": (3, 32, 32),
    "heart": (10,),
    "adult": (91,),
}


def classes_of(name: str) -> int:
    """How many kinds of records there are."""
    return 2 if name in ("heart", "adult", "sst2") else 10


@dataclass(frozen=True, eq=False)
class Part:
    """Records and their labels. Images are unsigned bytes [n, channels, height, width]."""

    inputs: np.ndarray
    labels: np.ndarray


def parts(name: str, seed: int = 0, quick: bool = False) -> dict[str, Part]:
    """Training and test part; the files are checked by their checksums. ``quick`` reads no more than it must."""
    one_of(name, "data", SHAPES)
    if name == "adult":
        people = datasets.adult()
        features, labels = people.features().astype(np.float32), np.asarray(people.labels())
        return {
            "train": Part(features[people.train], labels[people.train]),
            "test": Part(features[people.test], labels[people.test]),
        }
    if name == "heart":
        return _heart(seed)
    return _images(name, quick, datasets.folder().resolve())


def is_there(name: str, seed: int, quick: bool) -> bool:
    """Whether the files can be read, so that nothing has to be made up."""
    try:
        parts(name, seed, quick)
    except PrivyPurseError:
        return False
    return True


@lru_cache(maxsize=2)
def _images(name: str, quick: bool, folder: Path) -> dict[str, Part]:
    """Read once for all trainings of a process: that takes longer than many a quick one."""
    read: dict[str, Callable[[], datasets.Images]] = {
        "mnist": lambda: datasets.mnist("MNIST"),
        "fashion-mnist": lambda: datasets.mnist("FashionMNIST"),
        "cifar10": lambda: datasets.cifar10(1 if quick else 5),
        "svhn": datasets.svhn,
        "svhn-rebuilt": datasets.svhn_rebuilt,
    }
    images = read[name]()

    def part(pixels: np.ndarray, labels: np.ndarray) -> Part:
        shaped = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
        return Part(np.ascontiguousarray(shaped), labels.astype(np.int64))

    return {
        "train": part(images.train_images, images.train_labels),
        "test": part(images.test_images, images.test_labels),
    }


def _heart(seed: int) -> dict[str, Part]:
    """All four hospitals as one pool, complete records, a third of them held out by the seed."""
    hospitals = datasets.heart_disease().values()
    inputs = np.concatenate([hospital.features().astype(np.float32) for hospital in hospitals])
    labels = np.concatenate([hospital.labels[hospital.complete()] for hospital in hospitals])
    order, third = np.random.default_rng([seed, 2]).permutation(labels.size), labels.size // 3
    return {
        "train": Part(inputs[order[third:]], labels[order[third:]]),
        "test": Part(inputs[order[:third]], labels[order[:third]]),
    }


def parts_or_made_up(name: str, seed: int, quick: bool) -> tuple[dict[str, Part], bool]:
    """The parts, and whether they were made up: a quick run does that where the files are missing."""
    try:
        return parts(name, seed, quick), False
    except PrivyPurseError:
        if not quick:
            raise
    return _made_up(name), True


def _made_up(name: str) -> dict[str, Part]:
    """Noise around one pattern for each class."""
    rng, shape, classes = np.random.default_rng(0), SHAPES[name], classes_of(name)
    patterns = rng.normal(size=(classes, *shape))
    labels = rng.integers(0, classes, 900)
    values = (patterns[labels] + rng.normal(size=(900, *shape))).astype(np.float32)
    return {"train": Part(values[:600], labels[:600]), "test": Part(values[600:], labels[600:])}


def split(records: int, validation: int) -> tuple[np.ndarray, np.ndarray]:
    """Which training records choosing trains on, and which it scores on: the same ones for all that it compares."""
    if not 0 < validation < records:
        raise InvalidInput(f"validation is {validation}; there are {records} training records to take it from")
    order = np.random.default_rng(20_24).permutation(records)
    return np.sort(order[validation:]), np.sort(order[:validation])


def pink_noise(shape: tuple[int, int, int], images: int = 2_000, seed: int = 0) -> np.ndarray:
    """Images that nobody took: spectra as of natural ones (amplitude 1/f), random phases, colours mostly alike.

    They say on which scale features lie without a look at anybody's data.
    """
    channels, height, width = shape
    rng = np.random.default_rng(seed)
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None]
    fall = 1 / np.maximum(np.hypot(rows, columns), 1 / max(height, width))
    grey, own = (
        np.fft.ifft2(np.fft.fft2(rng.normal(size=(images, each, height, width))) * fall).real
        for each in (1, channels)
    )
    values = grey + 0.4 * own
    values *= 0.25 / values.std()
    return np.asarray(np.clip(0.5 + values, 0, 1) * 255).astype(np.uint8)
