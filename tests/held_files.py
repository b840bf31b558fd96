"""What a file of purses or a book holds, while somebody else holds it."""

from pathlib import Path


def read_held(path: Path) -> bytes:
    """The content of a `HeldFile` as it is now, unchecked and without its lock."""
    whole = path.read_bytes()
    offset, length = map(int, whole[:512].split()[3:5])
    return whole[offset : offset + length]
