"""What an image data set is, whatever files it comes in."""

from __future__ import annotations

from dataclasses import dataclass

from privypurse.arrays import AnyArray


@dataclass(frozen=True, eq=False)
class Images:
    """Images and their labels, unsigned bytes, for training and for testing.

    Grey images are [n, height, width], colour images [n, height, width, 3].
    """

    train_images: AnyArray
    train_labels: AnyArray
    test_images: AnyArray
    test_labels: AnyArray
