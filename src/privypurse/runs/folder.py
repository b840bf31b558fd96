"""The folder that a run leaves behind: its files, which of them may be shown to others, and whether they are intact.

``run.json`` names every file with its SHA-256 and whether it is public or internal. It is internal itself: whoever
guesses what a sensitive file says can prove the guess by its digest. ``public.json`` names the public files alone,
and is public: what it names may be passed on together with it. Both say with which versions it was written, and on
which day it began. The day is public: it was chosen before a row was read. When the run ended is not, for how long it
took tells how many were drawn.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from privypurse._storage import digest_of_file, replace_file, replace_text
from privypurse.errors import InvalidInput
from privypurse.version import __version__

SCHEMA = 1
INTERNAL_LIST, PUBLIC_LIST = "run.json", "public.json"
_LIBRARIES = ("numpy", "scipy", "torch")


class File(msgspec.Struct, frozen=True):
    """One file of a run, as it was written."""

    public: bool
    sha256: str


class _Schema(msgspec.Struct, frozen=True):
    schema: int


class _Listing(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of ``run.json`` and ``public.json``."""

    schema: int
    privypurse: str
    command: str
    files: dict[str, File]
    begun: str = ""
    """The day, in UTC, as 2026-01-31; "" in lists of earlier releases."""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    """Of Python and of the libraries that were loaded."""
    charged: str = ""
    """Whether a ledger charges its people, in words; "" where the command says it elsewhere."""


class RunFolder:
    """A run's folder, and the files that were added to it by name."""

    def __init__(
        self, path: Path, command: str, files: dict[str, File], begun: str, versions: dict[str, str], charged: str
    ) -> None:
        """``command`` is what writes it, such as "train". To begin one or to read one, see below."""
        self.path, self.command, self.files, self.begun, self.versions = path, command, files, begun, versions
        self.charged = charged

    @classmethod
    def begin(cls, path: Path, command: str, begun: str | None = None, charged: str = "") -> RunFolder:
        """A folder that can be written to, its owner's alone if it is new; files of an unfinished run will be written
        over (see `check_free`).

        ``begun`` is the day as `today` gave it before data were read; None: today. ``charged`` says whether a ledger
        charges its people.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)  # sizes of internal files tell something too
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise InvalidInput(f"out {path} cannot be written to: {error.strerror}; name another folder") from None
        return cls(path, command, {}, today() if begun is None else begun, _versions(), charged)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """A folder each file of which is as it was written; else an error that names the first that is not.

        Where the public files were passed on without the others, it holds those. Digests find damage and oversight;
        whoever alters a file on purpose can alter the lists too.
        """
        folder = cls.listed(path)
        for complaint in folder.changes():
            raise InvalidInput(complaint)
        return folder

    @classmethod
    def listed(cls, path: str | Path) -> RunFolder:
        """A folder as its lists say, whatever its files are."""
        path = Path(path)
        whole = _listing(path / INTERNAL_LIST) or _listing(path / PUBLIC_LIST)
        if whole is None:
            raise InvalidInput(f"{path} is no run's folder: it holds neither {INTERNAL_LIST} nor {PUBLIC_LIST}")
        return cls(path, whole.command, whole.files, whole.begun, whole.versions, whole.charged)

    def changes(self) -> Iterator[str]:
        """A complaint for each file that is not as it was written, the list of public ones too."""
        public = _listing(self.path / PUBLIC_LIST)
        if public is not None and public.files != {name: file for name, file in self.files.items() if file.public}:
            yield f"{self.path / PUBLIC_LIST} was changed: it does not name the run's public files"
        if public is not None and (public.begun, public.versions) != (self.begun, self.versions):
            yield f"{self.path / PUBLIC_LIST} was changed: day or versions are not those of {INTERNAL_LIST}"
        if public is not None and public.command != self.command:
            yield f"{self.path / PUBLIC_LIST} was changed: it names another command than {INTERNAL_LIST}"
        if public is not None and public.charged != self.charged:
            yield f"{self.path / PUBLIC_LIST} was changed: it says otherwise than {INTERNAL_LIST} who is charged"
        for name, file in self.files.items():
            found = _inside(self.path, name)
            if not found.is_file():
                yield f"{found} is missing, which this run wrote; put it back"
            elif digest_of_file(found) != file.sha256:
                yield f"{found} was changed after this run wrote it; put the original back"

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
            whole = _Listing(SCHEMA, __version__, self.command, files, self.begun, self.versions, self.charged)
            listing = msgspec.json.encode(whole)
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


def today() -> str:
    """The day in UTC, as 2026-01-31."""
    return datetime.now(UTC).date().isoformat()


def _versions() -> dict[str, str]:
    loaded = {name: metadata.version(name) for name in _LIBRARIES if name in sys.modules}
    return {"python": platform.python_version(), **loaded}


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
