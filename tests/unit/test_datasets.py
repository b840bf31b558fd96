"""Data sets from a folder: real files where they are there, and clear errors where not."""

import gzip

import numpy as np
import pytest

import privypurse as pp
from privypurse import datasets

HAS_MNIST = all((datasets.folder() / name / "raw").is_dir() for name in ("MNIST", "FashionMNIST"))


@pytest.mark.skipif(not HAS_MNIST, reason="MNIST and Fashion-MNIST are not in $PRIVYPURSE_DATA")
@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_the_canonical_files_are_read(name: str) -> None:
    images = datasets.mnist(name)
    assert images.train_images.shape == (60_000, 28, 28)
    assert images.test_images.shape == (10_000, 28, 28)
    assert images.train_images.dtype == np.uint8
    # Both have ten classes; Fashion-MNIST has exactly 6,000 of each, MNIST 5,421 (fives) to 6,742 (ones).
    counts = np.bincount(images.train_labels)
    expected = (6_000, 6_000) if name == "FashionMNIST" else (5_421, 6_742)
    assert (counts.min(), counts.max()) == expected


def test_absent_or_altered_files_are_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PRIVYPURSE_DATA", str(tmp_path))
    with pytest.raises(pp.InvalidInput, match=r"train-images.*PRIVYPURSE_DATA"):
        datasets.mnist()
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"not images"))
    with pytest.raises(pp.InvalidInput, match="checksum"):
        datasets.mnist()
    with pytest.raises(pp.InvalidInput, match="'KMNIST'"):
        datasets.mnist("KMNIST")
