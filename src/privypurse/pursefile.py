"""What everyone has spent, on disk, so that it outlives a process."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np

from privypurse.arrays import AnyArray
from privypurse.errors import InvalidInput

_FIRST = b"privypurse-purses 1 sha256 "


class PurseFile:
    """Arrays in a file that one process holds at a time and that is replaced whole.

    Guarantee: when ``write`` returns, the new content is on disk (synchronised, so that a power failure does not undo
    it); if it raises or the process is killed, the file holds the old content or the new one, never a mixture.

    The file is for its owner's eyes (mode 0600): what people have spent is sensitive (rule 6). It belongs to one
    ``identity``, such as fingerprints of data and budgets, and is refused to any other. Removing it fills everybody's
    purse again, so keep it as long as the data.
    """

    arrays: dict[str, AnyArray] | None
    """What the file held when it was opened; None where there was none."""

    def __init__(self, path: str | Path, identity: Mapping[str, str]) -> None:
        """``identity`` names what the purses belong to: keys are words for an error message ("data set")."""
        self._path = Path(path).resolve()  # one file, one lock, by whatever link it is reached
        self._identity = dict(identity)
        self._process, self._thread = os.getpid(), threading.Lock()
        # The file itself is replaced by every write, and a lock on it would go with it.
        lock = self._path.with_name(self._path.name + ".lock")
        try:
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise InvalidInput(
                f"the purses {path} cannot be opened: {error.strerror}; is there such a folder?"
            ) from None
        try:
            self._take_lock()
            self.arrays = self._read()
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput(
                f"somebody else holds the purses {self._path}; wait for them. If it is an earlier use in this "
                "process, close() lets go of it"
            ) from None

    def _read(self) -> dict[str, AnyArray] | None:
        try:
            whole = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvalidInput(f"the purses {self._path} cannot be read: {error.strerror}") from None
        first, end, body = whole.partition(b"\n")
        if not first.startswith(_FIRST):
            # An empty file is refused too: it may be what is left of purses, and they must not fill up again.
            raise InvalidInput(f"{self._path} exists and holds no purses; name another file")
        if not end or first[len(_FIRST) :] != hashlib.sha256(body).hexdigest().encode("ascii"):
            raise InvalidInput(f"the purses {self._path} are damaged, so what was spent is not known")
        belongs, _, packed = body.partition(b"\n")
        self._refuse_another(json.loads(belongs))
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
        with self._thread:
            if self._lock < 0:
                raise InvalidInput(f"the purses {self._path} are closed")
            if os.getpid() != self._process:
                raise InvalidInput(f"the purses {self._path} were opened by another process; open them in this one")
            packed = io.BytesIO()
            packed.write(json.dumps(self._identity, sort_keys=True).encode("ascii") + b"\n")
            np.savez(packed, allow_pickle=False, **arrays)
            body = packed.getbuffer()
            beside = self._path.with_name(self._path.name + ".new")
            beside.unlink(missing_ok=True)  # what a killed process left; the lock says that nobody is writing it
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_FIRST + hashlib.sha256(body).hexdigest().encode("ascii") + b"\n")
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(beside, self._path)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise
            synchronise_folder(self._path.parent)

    def close(self) -> None:
        """Let others in."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> PurseFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


def fingerprint_arrays(*arrays: AnyArray) -> str:
    """SHA-256 over the kind, shape and bytes of each array, in this order."""
    mark = hashlib.sha256()
    for array in arrays:
        plain = np.asarray(array)
        if plain.dtype.hasobject:
            raise InvalidInput("an array of Python objects has no bytes of its own; convert it to numbers or text")
        mark.update(f"{plain.dtype.str}{plain.shape}\n".encode("ascii"))
        mark.update(np.ascontiguousarray(plain).reshape(-1).view(np.uint8).data)
    return mark.hexdigest()


def synchronise_folder(folder: Path) -> None:
    """Wait until the names of new and replaced files in this folder are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
