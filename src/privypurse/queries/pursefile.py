"""What everyone has spent, on disk, so that it outlives a process."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from privypurse._storage import HeldFile
from privypurse.arrays import AnyArray
from privypurse.errors import InvalidInput


class PurseFile:
    """Arrays in a file that one process holds at a time and that changes whole or not at all (see `HeldFile`).

    The file is for its owner's eyes (mode 0600): what people have spent is sensitive. It belongs to one
    ``identity``, such as fingerprints of data and budgets, and is refused to any other. Removing it fills everybody's
    purse again, so keep it as long as the data.
    """

    arrays: dict[str, AnyArray] | None
    """What the file held when it was opened; None where there was none."""

    def __init__(self, path: str | Path, identity: Mapping[str, str]) -> None:
        """``identity`` names what the purses belong to: keys are words for an error message ("data set")."""
        self._path, self._identity = Path(path), dict(identity)
        self._file = HeldFile(path, "purses", self._packed({}))
        try:
            self.arrays = self._unpacked(self._file.content)
        except BaseException:
            self.close()
            raise

    def _packed(self, arrays: Mapping[str, AnyArray]) -> memoryview:
        packed = io.BytesIO()
        packed.write(json.dumps(self._identity, sort_keys=True).encode("ascii") + b"\n")
        if arrays:
            np.savez(packed, allow_pickle=False, **arrays)
        return packed.getbuffer()

    def _unpacked(self, content: bytes) -> dict[str, AnyArray] | None:
        belongs, _, packed = content.partition(b"\n")
        self._refuse_another(json.loads(belongs))
        if not packed:
            return None
        try:
            with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
                return {name: np.array(arrays[name]) for name in arrays.files}
        except (ValueError, zipfile.BadZipFile) as error:
            raise InvalidInput(f"the purses {self._path} cannot be read: {error}") from None

    def _refuse_another(self, found: dict[str, str]) -> None:
        differs = [name for name in {**found, **self._identity} if found.get(name) != self._identity.get(name)]
        if differs:
            raise InvalidInput(
                f"the purses {self._path} belong to another {' and another '.join(differs)}. For the same people, go "
                "on with what they were opened for: purses of several data sets do not add up by themselves. A new "
                "file starts with full purses, so it is for other people only"
            )

    def write(self, **arrays: AnyArray) -> None:
        """Replace the content by these arrays; on disk when this returns."""
        self._file.write(self._packed(arrays))

    def close(self) -> None:
        """Let others in."""
        self._file.close()
