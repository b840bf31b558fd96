"""Files that promises hang on: locked, written whole or not at all, synchronised, for their owner's eyes only.

A lock file beside a count can be removed, and then two hold it. So the lock lies on what holds the count, by whatever
name or link it is reached, and that file keeps its inode: it is never replaced by another.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from privypurse.arrays import AnyArray
from privypurse.errors import InvalidInput, Unsupported

_OWNER_ONLY = 0o600
_BLOCK = 4096  # bytes; what is valid and what is being written never share a sector
_POINTER = 512  # bytes: one sector, which a disk writes whole or not at all
_TRIES = 100


class HeldFile:
    """Bytes in a file that one process holds at a time and whose content changes whole or not at all.

    Guarantee: when ``write`` returns, the new content is on disk (synchronised, so that a power failure does not undo
    it); if it raises or the process is killed, the file holds the old content or the new one, never a mixture. Nobody
    else opens it meanwhile, by whatever path, symbolic or hard link. What was removed, replaced or changed by
    somebody who did not ask for the lock is found before the next write, which is then refused.

    The first sector says where the content lies, how long it is and its SHA-256. New content goes beside the old one;
    once it is on disk the first sector is changed. Locks are the system's (flock): on a file system without them, or
    among machines that share one, there is no such guarantee.
    """

    content: bytes
    """What the file held when it was opened, or ``first`` where there was none."""

    def __init__(
        self, path: str | Path, what: str, first: bytes | memoryview, *, busy: str = "", again: str = ""
    ) -> None:
        """``what`` is a word for messages and the head of the file, such as "purses"; ``first`` begins a new one.

        ``busy`` is what is said if somebody else holds it, ``again`` how to open it another time.
        """
        self._path = resolved(path)  # one file by whatever link it is reached
        self._magic, self._what = f"privypurse-{what} 2 ".encode("ascii"), what
        self._again = again or f"open the {what} again"
        self._busy = busy or (
            f"somebody else holds the {what} {self._path}; wait for them. If it is an earlier use in this process, "
            "close() lets go of it"
        )
        self._process, self._thread = os.getpid(), threading.Lock()
        self._file = self._opened(path, first)
        try:
            self._pointer = os.pread(self._file, _POINTER, 0)
            self._at, self.content = self._read()
        except BaseException:
            self.close()
            raise

    def _opened(self, path: str | Path, first: bytes | memoryview) -> int:
        try:
            try:
                return open_held(self._path, os.O_RDWR, self._busy)
            except FileNotFoundError:
                file = self._created(first)
                return open_held(self._path, os.O_RDWR, self._busy) if file is None else file
        except OSError as error:
            raise InvalidInput(
                f"the {self._what} {path} cannot be opened: {error.strerror or error}; is there such a folder?"
            ) from None

    def _created(self, first: bytes | memoryview) -> int | None:
        """A new file, complete and locked before it gets its name; None if somebody else was quicker."""
        beside = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        try:
            lock(file, f"{beside} is in use")
            _write_at(file, first, _BLOCK)
            _write_at(file, self._pointer_to(_BLOCK, first, 0), 0)
            os.fsync(file)
            os.link(beside, self._path)
        except BaseException as error:
            os.close(file)
            if isinstance(error, FileExistsError):
                return None
            raise
        finally:
            beside.unlink(missing_ok=True)
        synchronise_folder(self._path.parent)
        return file

    def _pointer_to(self, offset: int, content: bytes | memoryview, generation: int) -> bytes:
        said = f"{generation} {offset} {len(content)} {hashlib.sha256(content).hexdigest()} ".encode("ascii")
        line = self._magic + said
        return (line + hashlib.sha256(line).hexdigest().encode("ascii")).ljust(_POINTER - 1) + b"\n"

    def _read(self) -> tuple[tuple[int, int, int], bytes]:
        """Where the content lies (generation, offset, length), and the content."""
        if not self._pointer.startswith(self._magic):
            if self._pointer.startswith(self._magic.split()[0] + b" "):
                raise InvalidInput(f"{self._path} is of another version, with which to go on, or damaged")
            # An empty file is refused too: it may be what is left of purses, and they must not fill up again.
            raise InvalidInput(f"{self._path} exists and holds no {self._what} of this version; name another file")
        damaged = InvalidInput(f"{self._path} is damaged, so what was spent is not known any more")
        try:
            generation, offset, length = map(int, self._pointer[len(self._magic) :].split()[:3])
            content = _read_at(self._file, length, offset)
        except (ValueError, OverflowError, OSError, MemoryError):
            raise damaged from None
        if len(content) != length or self._pointer != self._pointer_to(offset, content, generation):
            raise damaged
        return (generation, offset, length), content

    def write(self, content: bytes | memoryview) -> None:
        """Replace the content; on disk when this returns."""
        with self._thread:  # a close meanwhile would let somebody else read what is being replaced
            self.require_open()
            if os.pread(self._file, _POINTER, 0) != self._pointer:
                raise InvalidInput(
                    f"somebody else changed the {self._what} {self._path}; nothing was written. Open it anew"
                )
            generation, offset, length = self._at
            before = offset // _BLOCK * _BLOCK
            place = _BLOCK if _BLOCK + len(content) <= before else -(-(offset + length) // _BLOCK) * _BLOCK
            _write_at(self._file, content, place)
            os.fsync(self._file)
            pointer = self._pointer_to(place, content, generation + 1)
            _write_at(self._file, pointer, 0)
            os.fsync(self._file)
            self._pointer, self._at = pointer, (generation + 1, place, len(content))

    def require_open(self) -> None:
        """Raise if it is closed, belongs to another process, or is not the file of that name any more."""
        if self._file < 0:
            raise InvalidInput(f"{self._path} was closed; {self._again}")
        if os.getpid() != self._process:  # a fork inherits lock and count, and would count on its own
            raise InvalidInput(f"{self._path} was opened by another process; in this one, {self._again}")
        if not is_named(self._file, self._path):
            raise InvalidInput(
                f"{self._path} was removed or replaced since it was opened, so nothing was written; put the "
                f"{self._what} back where they were"
            )

    def close(self) -> None:
        """Let others in, after what is being written. Twice does no harm."""
        with self._thread:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


def open_held(path: Path, flags: int, busy: str) -> int:
    """Open and lock a file that holds a count, and leave it to its owner's eyes; `InvalidInput` with ``busy``.

    Between opening and locking it may have been replaced: what is locked has to be what the name names.
    """
    for _ in range(_TRIES):
        file = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), _OWNER_ONLY)
        try:
            _refuse_device(os.fstat(file).st_mode, path)
            lock(file, busy)
            if is_named(file, path):
                if stat.S_IMODE(os.fstat(file).st_mode) != _OWNER_ONLY:
                    os.fchmod(file, _OWNER_ONLY)
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)
    raise InvalidInput(f"{path} is replaced again and again while it is being opened; try again")


def _refuse_device(mode: int, path: Path) -> None:
    """Raise for what is neither file nor folder, such as /dev/null, before it is replaced or its mode is changed."""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InvalidInput(f"{path} is a device or a pipe, which keeps nothing; name a file")


def lock(file: int, busy: str) -> None:
    """Take the system's lock on an open file or folder, or raise `InvalidInput` with this message."""
    try:
        import fcntl
    except ImportError:
        raise Unsupported(
            "this system has no fcntl, so what is spent cannot be locked on disk; keep it in memory (without a file "
            "of purses, journal, checkpoint or book), or use Linux or macOS"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidInput(busy) from None


def resolved(path: str | Path) -> Path:
    """Where the path leads, through all links."""
    try:
        return Path(path).resolve()
    except (RuntimeError, OSError):  # RuntimeError before Python 3.13
        raise InvalidInput(f"{path} is a link that leads back to itself; name a file") from None


def is_named(file: int, path: Path) -> bool:
    """Whether this open file is the one that the path names now."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def replace_file(path: str | Path, fill: Callable[[BinaryIO], Any]) -> None:
    """Write a file whole or not at all: ``fill`` writes it; on disk, with its name, when this returns.

    For its owner's eyes (mode 0600), whatever was there before.
    """
    whole = resolved(path)  # a link stays one
    if whole.exists():
        _refuse_device(whole.stat().st_mode, whole)
    handle, beside = _opened_beside(whole)
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, whole)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    synchronise_folder(whole.parent)


def _opened_beside(whole: Path) -> tuple[int, Path]:
    """An empty file to be filled: what a killed process left, if nobody is writing it, else one of another name."""
    beside = whole.with_name(f".{whole.name}.new")
    try:
        file = open_held(beside, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), "")
        os.ftruncate(file, 0)
        return file, beside
    except (InvalidInput, Unsupported, OSError):
        beside = whole.with_name(f".{whole.name}.{secrets.token_hex(8)}")
        return os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, _OWNER_ONLY), beside


def replace_text(path: str | Path, text: str) -> None:
    """`replace_file` with this text, in UTF-8."""
    replace_file(path, lambda file: file.write(text.encode("utf-8")))


def make_folder(folder: Path) -> None:
    """Make a folder for its owner's eyes, and those above it, if they are not there; on disk when this returns."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for one in missing:
        synchronise_folder(one.parent)


def synchronise_folder(folder: Path) -> None:
    """Wait until the names of new and replaced files in this folder are on disk."""
    if os.name == "nt":  # which cannot open folders; it synchronises names by itself
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest_of(content: Any) -> str:
    """SHA-256 of plain data, as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest_of_arrays(*arrays: AnyArray) -> str:
    """SHA-256 over the kind, shape and bytes of each array, in this order."""
    whole = hashlib.sha256()
    for array in map(np.asarray, arrays):
        if array.dtype.hasobject:
            raise InvalidInput("an array of Python objects has no bytes of its own; convert it to numbers or text")
        whole.update(f"{array.dtype.str}{array.shape}\n".encode("ascii"))
        whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return whole.hexdigest()


def digest_of_file(path: Path) -> str:
    """SHA-256 of what a file holds."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_at(file: int, length: int, offset: int) -> bytes:
    """So many bytes, or fewer where the file ends before."""
    content = os.pread(file, length, offset)
    while len(content) < length and (more := os.pread(file, length - len(content), offset + len(content))):
        content += more
    return content


def _write_at(file: int, content: bytes | memoryview, offset: int) -> None:
    left = memoryview(content)
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written
