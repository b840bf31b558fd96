"""The folder that a run leaves behind: its files, which of them may be shown to others, and whether they are intact.

``run.json`` names every file with its SHA-256 and whether it is public or internal. It is internal itself: whoever
guesses what a sensitive file says can prove the guess by its digest. ``public.json`` names the public files alone,
and is public: what it names may be passed on together with it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from privypurse._storage import digest_of_file, replace_file, replace_text
from privypurse.errors import InvalidInput
from privypurse.version import __version__

SCHEMA = 1
INTERNAL_LIST, PUBLIC_LIST = "run.json", "public.json"


class File(msgspec.Struct, frozen=True):
    """One file of a run, as it was written."""

    public: bool
    sha256: str


class _Schema(msgspec.Struct, frozen=True):
    schema: int


class _Listing(msgspec.Struct, frozen=True):
    """The content of ``run.json`` and ``public.json``."""

    schema: int
    privypurse: str
    command: str
    files: dict[str, File]


class RunFolder:
    """A run's folder, and the files that were added to it by name."""

    def __init__(self, path: Path, command: str, files: dict[str, File]) -> None:
        """``command`` is what writes it, such as "train". To begin one or to read one, see below."""
        self.path, self.command, self.files = path, command, files

    @classmethod
    def begin(cls, path: Path, command: str) -> RunFolder:
        """A folder that can be written to; files of an unfinished run will be written over (see `check_free`)."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise InvalidInput(f"out {path} cannot be written to: {error.strerror}; name another folder") from None
        return cls(path, command, {})

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """A folder each file of which is as it was written; else an error that names the first that is not.

        Where the public files were passed on without the others, it holds those. Digests find damage and oversight;
        whoever alters a file on purpose can alter the lists too.
        """
        path = Path(path)
        internal, public = _listing(path / INTERNAL_LIST), _listing(path / PUBLIC_LIST)
        whole = internal or public
        if whole is None:
            raise InvalidInput(f"{path} is no run's folder: it holds neither {INTERNAL_LIST} nor {PUBLIC_LIST}")
        if public is not None and public.files != {name: file for name, file in whole.files.items() if file.public}:
            raise InvalidInput(f"{path / PUBLIC_LIST} was changed: it does not name the run's public files")
        for name, file in whole.files.items():
            found = _inside(path, name)
            if not found.is_file():
                raise InvalidInput(f"{found} is missing, which this run wrote; put it back")
            if digest_of_file(found) != file.sha256:
                raise InvalidInput(f"{found} was changed after this run wrote it; put the original back")
        return cls(path, whole.command, whole.files)

    def add(self, name: str, content: str | Callable[[BinaryIO], Any] | None, *, public: bool = False) -> None:
        """Write a file, whole or not at all, and list it.

        ``content`` is its text or a function that writes it; None for a file that lies there already. Public is what
        everybody's ε has paid for, and what follows from nobody's data or budget; whoever reads the folder reads it.
        All else is internal, for its owner's eyes (mode 0600): plan, budgets, spending, realised batch sizes, loss
        and accuracy in training.
        """
        for_all = 0o600 | self.path.stat().st_mode & 0o044
        file = _inside(self.path, name)
        if content is not None:
            _write(file, content)
        file.chmod(for_all if public else 0o600)
        self.files[name] = File(public, digest_of_file(file))
        shown = {each: file for each, file in self.files.items() if file.public}
        for place, files, mode in ((INTERNAL_LIST, self.files, 0o600), (PUBLIC_LIST, shown, for_all)):
            listing = msgspec.json.encode(_Listing(SCHEMA, __version__, self.command, files))
            _write(self.path / place, msgspec.json.format(listing, indent=1).decode() + "\n")
            (self.path / place).chmod(mode)

    def add_json(self, name: str, content: Any, *, public: bool = False) -> None:
        """The same with plain data."""
        self.add(name, json.dumps(content, ensure_ascii=False, indent=1) + "\n", public=public)

    def add_all(self) -> None:
        """List every file that lies in the folder or below it, as internal."""
        for file in sorted(self.path.rglob("*")):
            name = file.relative_to(self.path).as_posix()
            if file.is_file() and not file.is_symlink() and name not in (INTERNAL_LIST, PUBLIC_LIST):
                self.add(name, None)


def check_free(path: Path, *names: str, hint: str = "") -> None:
    """Raise unless a run can be written there without destroying one, which would have these files at its end."""
    if path.exists() and not path.is_dir():
        raise InvalidInput(f"out {path} is a file; name a folder")
    for name in names:
        if (path / name).exists():
            raise InvalidInput(
                f"{path} already holds the {name} of a run; name another folder for out, or remove it{hint}"
            )


def _listing(file: Path) -> _Listing | None:
    """A list of files; None where there is none."""
    if not file.exists():
        return None
    try:
        content = file.read_bytes()
        schema = msgspec.json.decode(content, type=_Schema).schema
        if schema == SCHEMA:
            return msgspec.json.decode(content, type=_Listing)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{file} was changed or damaged: {error}") from None
    raise InvalidInput(f"{file} has schema number {schema}, this release knows {SCHEMA}; read it with a later one")


def _inside(folder: Path, name: str) -> Path:
    """The file of that name in the folder, or below it; not one outside, nor one of the lists."""
    if name in (INTERNAL_LIST, PUBLIC_LIST, "") or Path(name).is_absolute() or ".." in Path(name).parts:
        raise InvalidInput(f"{name!r} cannot be a file of the run in {folder}; give a name of its own")
    return folder / name


def _write(file: Path, content: str | Callable[[BinaryIO], Any]) -> None:
    if isinstance(content, str):
        replace_text(file, content)
    else:
        replace_file(file, content)
