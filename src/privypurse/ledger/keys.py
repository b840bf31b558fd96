"""Whose purse it is, told by a keyed hash of the id: a ledger without its key names nobody."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from privypurse._storage import replace_text
from privypurse.errors import InvalidInput

VARIABLE = "PRIVYPURSE_LEDGER_KEY"
_LENGTH = 32  # bytes
_KEYED = 16  # bytes of a keyed id; two of ten million people share one with a chance of 2^-82
_HOW = f"name the key file by key=, or set {VARIABLE} to its path or to the key's {2 * _LENGTH} hexadecimal digits"

KeySource = bytes | str | Path | None


class Key:
    """The secret that turns ids into what a ledger keeps of them."""

    def __init__(self, raw: bytes) -> None:
        if len(raw) != _LENGTH:
            raise InvalidInput(f"key has {len(raw)} bytes, not {_LENGTH}; {_HOW}")
        self._raw = bytes(raw)

    def __repr__(self) -> str:
        return "Key(…)"

    def keyed(self, texts: Sequence[str]) -> list[bytes]:
        """For each canonical id its BLAKE2b digest under the key, 16 bytes."""
        begun = hashlib.blake2b(digest_size=_KEYED, key=self._raw, person=b"privypurse id")

        def digest(text: str) -> bytes:
            own = begun.copy()
            own.update(text.encode("utf-8", "surrogatepass"))
            return own.digest()

        return [digest(text) for text in texts]

    def mark(self, what: bytes) -> bytes:
        """A digest that only who has the key can make: of a snapshot, and of the ledger's id to know the key by."""
        return hashlib.blake2b(what, digest_size=_KEYED, key=self._raw, person=b"privypurse mark").digest()

    def check(self, ledger: str, expected: bytes) -> None:
        if not hmac.compare_digest(self.mark(ledger.encode()), expected):
            raise InvalidInput(f"the key is not that of the ledger {ledger}, so its ids could not be matched; {_HOW}")


def found(source: KeySource) -> Key | None:
    """The key out of bytes, a file, or the environment; None where there is none."""
    if isinstance(source, bytes):
        return Key(source)
    if source is None:
        text = os.environ.get(VARIABLE, "").strip()
        if not text:
            return None
        raw = _parsed(text)
        return Key(raw) if raw else _read(Path(text))
    return _read(Path(source))


def required(key: Key | None) -> Key:
    if key is None:
        raise InvalidInput(f"the ledger keeps no ids, only keyed hashes of them, and its key is missing; {_HOW}")
    return key


def new() -> bytes:
    return secrets.token_bytes(_LENGTH)


def write(path: Path, raw: bytes) -> None:
    try:
        replace_text(path, raw.hex() + "\n")
    except OSError as error:
        raise InvalidInput(
            f"the key file {path} cannot be written: {error.strerror or error}; name a file in a folder that exists"
        ) from None


@contextmanager
def found_or_made(source: KeySource) -> Iterator[Key]:
    """The key for a new ledger; a key file that does not exist is written, and removed if the ledger is not made."""
    named = os.environ.get(VARIABLE, "").strip() if source is None else source
    path = Path(named) if isinstance(named, str | Path) and named and not _is_key(named) else None
    if path is None or path.exists():
        yield required(found(source))
        return
    raw = new()
    write(path, raw)
    try:
        yield Key(raw)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _read(path: Path) -> Key:
    try:
        text = path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the key file {path} cannot be read: {error}; {_HOW}") from None
    raw = _parsed(text.strip())
    if raw is None:
        raise InvalidInput(f"{path} holds no key ({2 * _LENGTH} hexadecimal digits); {_HOW}")
    return Key(raw)


def _is_key(named: str | Path) -> bool:
    """Whether this is a key itself, as the environment may have it."""
    return isinstance(named, str) and _parsed(named) is not None


def _parsed(text: str) -> bytes | None:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return None
    return raw if len(raw) == _LENGTH else None
