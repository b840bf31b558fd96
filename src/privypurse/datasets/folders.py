"""Where larger data sets are, and whether what lies there is what it should be."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from privypurse.errors import InvalidInput


def folder() -> Path:
    """Where larger data sets are: $PRIVYPURSE_DATA, else data/ in the working directory."""
    return Path(os.environ.get("PRIVYPURSE_DATA", "data"))


def file_of(data_set: str, files: str, *parts: str) -> Path:
    """A file below `folder`; where it is not there, an error that says which ``files`` to put where."""
    path = folder().joinpath(*parts)
    if not path.is_file():
        raise InvalidInput(
            f"{path} is not there; put {files} of {data_set} into {path.parent}, or set PRIVYPURSE_DATA to the "
            f"folder that holds {parts[0]}/"
        )
    return path


def check(content: bytes, expected: str, path: Path, data_set: str, algorithm: str = "sha256") -> None:
    """Raise unless this is the content that everybody else calls by that name."""
    if hashlib.new(algorithm, content).hexdigest() != expected:
        raise InvalidInput(f"{path} is not the canonical file of {data_set}: its checksum differs; get it anew")
