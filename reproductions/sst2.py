"""SST-2 (Socher et al. 2013, as in GLUE): phrases of film reviews, good or bad, and those that choosing may look at.

A record is a phrase. Most are parts of others: the training file has whole sentences together with the phrases that
they are made of, in random order. A random part of the phrases would therefore be known from the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from privypurse.datasets.folders import check, file_of
from privypurse.errors import InvalidInput, PrivyPurseError

_SHA256 = {
    "train": "dc4a10637729af71aeb11f573482b10031ba7ffe53159403599d06759e484e30",
    "test": "84207e6be5873fb18db798cc6faec86871f5a426554650ff64a1c34e87665f6f",
}
_FILES = {"train": "train.tsv", "test": "dev.tsv"}
"""The labels of GLUE's test file are not public: what everybody reports is the dev file."""


@dataclass(frozen=True, eq=False)
class Phrases:
    """Texts and their labels, 1 for good."""

    texts: Sequence[str]
    labels: np.ndarray


def parts() -> dict[str, Phrases]:
    """Training part and dev part, checked by their checksums."""
    return {part: _read(part) for part in _FILES}


def parts_or_made_up(quick: bool) -> dict[str, Phrases]:
    """The parts; for a quick run phrases that nobody wrote, where the files are missing."""
    try:
        return parts()
    except PrivyPurseError:
        if not quick:
            raise
    return {"train": _made_up(300, 0), "test": _made_up(50, 1)}


def _read(part: str) -> Phrases:
    path = file_of("SST-2", "train.tsv and dev.tsv", "sst2", _FILES[part])
    raw = path.read_bytes()
    check(raw, _SHA256[part], path, "SST-2")
    rows = [line.split("\t", 1) for line in raw.decode().splitlines()[1:]]
    return Phrases([text for _, text in rows], np.array([int(label) for label, _ in rows]))


def _made_up(count: int, seed: int) -> Phrases:
    """Random words, one of them telling the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    words = rng.choice(["film", "plot", "cast", "the", "a", "of", "and", "scene"], (count, 6))
    return Phrases(
        [" ".join([*row, ("bad", "good")[label]]) for row, label in zip(words.tolist(), labels, strict=True)], labels
    )


def split(texts: Sequence[str], held: int) -> tuple[np.ndarray, np.ndarray]:
    """Which phrases choosing trains on, and which it scores on.

    It scores on ``held`` phrases that are part of no other, as the dev file's sentences are, and trains on nothing
    that is a part of one of those. Drawn by a fixed seed, so the same for all that is compared.
    """
    words = [tuple(text.split()) for text in texts]
    known = set(words)
    within = {part for phrase in known for part in _parts(phrase) if part != phrase and part in known}
    whole = [row for row, phrase in enumerate(words) if phrase not in within]
    if not 0 < held < len(whole):
        raise InvalidInput(f"validation is {held}; there are {len(whole)} phrases that are part of no other")
    chooses = np.sort(np.random.default_rng(20_24).permutation(whole)[:held])
    told = {part for row in chooses.tolist() for part in _parts(words[row])}
    return np.array([row for row, phrase in enumerate(words) if phrase not in told]), chooses


def _parts(phrase: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every run of its words, itself included."""
    return (phrase[i:j] for i in range(len(phrase)) for j in range(i + 1, len(phrase) + 1))
