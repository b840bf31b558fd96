"""Words to numbers as BERT's uncased models want them (Devlin et al. 2019, arXiv 1810.04805): WordPiece.

Small letters without accents, split at white space and punctuation; a word that is not in the vocabulary becomes the
longest pieces that are, from the left.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

SPECIAL = PADDING, UNKNOWN, START, END = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_LONGEST = 100  # letters of a word that is taken apart


class WordPieces:
    """A vocabulary, and texts as rows of its numbers."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._number = {piece: number for number, piece in enumerate(vocabulary)}
        self._known: dict[str, list[int]] = {}
        self._unknown = self._number[UNKNOWN]

    def numbers(self, texts: Sequence[str], length: int) -> np.ndarray:
        """One row for each text, begun and ended as BERT's are, cut off or padded to ``length``: a public number."""
        out = np.full((len(texts), length), self._number[PADDING], np.uint16)
        for row, text in zip(out, texts, strict=True):
            found = [piece for word in words(text) for piece in self._pieces(word)][: length - 2]
            whole = [self._number[START], *found, self._number[END]]
            row[: len(whole)] = whole
        return out

    def _pieces(self, word: str) -> list[int]:
        if word not in self._known:
            self._known[word] = self._taken_apart(word)
        return self._known[word]

    def _taken_apart(self, word: str) -> list[int]:
        if len(word) > _LONGEST:
            return [self._unknown]
        out, begin = [], 0
        while begin < len(word):
            ahead = "##" if begin else ""
            ends = (end for end in range(len(word), begin, -1) if ahead + word[begin:end] in self._number)
            end = next(ends, None)
            if end is None:
                return [self._unknown]
            out.append(self._number[ahead + word[begin:end]])
            begin = end
        return out


def words(text: str) -> list[str]:
    """Words and marks of punctuation, in small letters without accents."""
    plain = unicodedata.normalize("NFD", text.lower())
    kept = "".join(each for each in plain if unicodedata.category(each) != "Mn")
    return "".join(f" {each} " if _stands_alone(each) else each for each in kept).split()


def _stands_alone(letter: str) -> bool:
    """Punctuation, as BERT has it: whatever of ASCII is no letter, number or space, too."""
    return (letter.isascii() and letter.isprintable() and not letter.isalnum() and letter != " ") or (
        unicodedata.category(letter).startswith("P")
    )
