"""SVHN, which comes as MATLAB files."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np

from privypurse.arrays import AnyArray
from privypurse.datasets.folders import check, file_of
from privypurse.datasets.images import Images

# The checksums that are known for the files as they were published; of the whole files, since there is one of each.
SVHN_MD5 = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}


def svhn(md5: Mapping[str, str] = SVHN_MD5) -> Images:
    """SVHN (Netzer et al. 2011): 32 × 32 colour images of house numbers, labels 0 … 9.

    ``md5`` says which files are accepted; with the default, those that were published and no others.
    """
    train, test = (_part(name, md5[name]) for name in SVHN_MD5)
    return Images(*train, *test)


def _part(name: str, md5: str) -> tuple[AnyArray, AnyArray]:
    from scipy.io import loadmat

    path = file_of("SVHN", " and ".join(SVHN_MD5), "svhn", name)
    raw = path.read_bytes()
    check(raw, md5, path, "SVHN", "md5")  # before it is parsed: a parser of binary files is no place for surprises
    arrays = loadmat(io.BytesIO(raw))
    images = np.ascontiguousarray(np.moveaxis(arrays["X"], -1, 0))  # there it is [height, width, 3, n]
    return images, (arrays["y"].ravel() % 10).astype(np.uint8)  # there the digit 0 is called 10
