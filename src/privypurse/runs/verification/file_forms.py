"""Which kind of file one is, by its form alone: no library of its format is asked, and nothing of it is run."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import BinaryIO

_ZIP = b"PK\x03\x04"
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_ONNX = {1: _VARINT, 5: _VARINT} | dict.fromkeys((2, 3, 4, 6, 7, 8, 14, 20, 25, 26), _LENGTH)
"""The fields of ONNX's ModelProto, each with how protobuf writes it."""
_ONNX_NEEDS = {1, 7, 8}
"""Version, graph and operators: in every model."""


def is_onnx(file: Path) -> bool:
    """Whether it reads to its end as the fields of a model of ONNX."""
    found, size = set(), file.stat().st_size
    with file.open("rb") as content:
        while content.tell() < size:
            key = _varint(content)
            if key is None or _ONNX.get(key >> 3) != key & 7:
                return False
            value = _varint(content)
            if value is None:
                return False
            if key & 7 == _LENGTH:
                content.seek(value, 1)
            found.add(key >> 3)
        return content.tell() == size and found >= _ONNX_NEEDS


def _varint(content: BinaryIO) -> int | None:
    """A number as protobuf writes it; None where there is none."""
    value = 0
    for place in range(10):
        byte = content.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << 7 * place
        if byte[0] < 0x80:
            return value
    return None


def is_pt2(file: Path) -> bool:
    """Whether it is an archive that holds a program, as `torch.export.save` writes it."""
    with file.open("rb") as content:
        if content.read(len(_ZIP)) != _ZIP:
            return False
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False
    inside = {name.partition("/")[2] for name in names}
    # The first as torch writes it now, the second as its earlier releases did.
    return any(name.startswith("models/") for name in inside) or "serialized_exported_program.json" in names


def is_svg(file: Path) -> bool:
    """Whether it begins as curves do."""
    with file.open("rb") as content:
        beginning = content.read(1000)
    return beginning.startswith(b"<?xml") and b"<svg" in beginning
