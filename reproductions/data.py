"""Image sets as tensors of bytes, and the part of them that choosing may look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privypurse import datasets
from privypurse.errors import InvalidInput

_READERS: dict[str, Callable[[], datasets.Images]] = {
    "mnist": lambda: datasets.mnist("MNIST"),
    "fashion-mnist": lambda: datasets.mnist("FashionMNIST"),
    "cifar10": datasets.cifar10,
    "svhn": datasets.svhn_rebuilt,
}


@dataclass(frozen=True, eq=False)
class Part:
    """Images [n, channels, height, width], unsigned bytes, and their labels."""

    images: np.ndarray
    labels: np.ndarray


def parts(name: str) -> dict[str, Part]:
    """Training and test part of an image set, checked by their checksums."""
    if name not in _READERS:
        raise InvalidInput(f"data is {name!r}; choose one of {', '.join(_READERS)}")
    images = _READERS[name]()

    def part(pixels: np.ndarray, labels: np.ndarray) -> Part:
        shaped = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
        return Part(np.ascontiguousarray(shaped), labels.astype(np.int64))

    return {
        "train": part(images.train_images, images.train_labels),
        "test": part(images.test_images, images.test_labels),
    }


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
