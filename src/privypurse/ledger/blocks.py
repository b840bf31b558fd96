"""Everybody's class in an entry, 4,096 people to a block: two bytes each.

A block's payload is little-endian 16-bit numbers: how many values there are for each person, how many people are
listed (65,535: all places are written, and who is not listed has the value 65,535), then the places where they are
needed, then the values, one whole column after another. The form depends on who is listed alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from privypurse.arrays import AnyArray, IntArray

SIZE = 4096
UNLISTED, NOTHING = 65_535, 65_534
"""Values of people who are not in the entry, and of people who are and pay nothing."""
_DENSE = 65_535
_HEAD = 4  # bytes

Values = npt.NDArray[np.uint16]
Row = tuple[int, bytes]
"""A block's number and its payload."""


def encoded(numbers: IntArray, values: Values) -> list[Row]:
    """``numbers`` rise, without doubles; ``values`` is [columns, people]."""
    block, place = numbers // SIZE, (numbers % SIZE).astype("<u2")
    blocks, first = np.unique(block, return_index=True)
    ends = np.append(first[1:], numbers.size)
    return [
        (int(number), _payload(place[begin:end], values[:, begin:end]))
        for number, begin, end in zip(blocks.tolist(), first.tolist(), ends.tolist(), strict=True)
    ]


def _payload(places: AnyArray, values: Values) -> bytes:
    columns, listed = values.shape
    if 2 * listed < SIZE:
        head = np.array([columns, listed], dtype="<u2")
        return head.tobytes() + places.tobytes() + np.ascontiguousarray(values, dtype="<u2").tobytes()
    whole = np.full((columns, SIZE), UNLISTED, dtype="<u2")
    whole[:, places] = values
    return np.array([columns, _DENSE], dtype="<u2").tobytes() + whole.tobytes()


def decoded(rows: Sequence[Row], blocks: IntArray) -> Iterator[tuple[IntArray | slice, Values]]:
    """Where the people of an entry stand in an array of these whole blocks one after another, and their values.

    In parts: blocks that are written whole and follow each other make one, a slice with everybody in it, UNLISTED
    where they are not in the entry; all others are named place by place. Values are [columns, places].
    """
    position = np.searchsorted(blocks, [number for number, _ in rows]).tolist()
    dense = [payload[2:_HEAD] == b"\xff\xff" for _, payload in rows]
    # A run of blocks goes on while both the row and the position rise by one.
    keys = [(whole, place - row) for row, (whole, place) in enumerate(zip(dense, position, strict=True))]
    for (whole, _), group in groupby(range(len(rows)), key=keys.__getitem__):
        members = list(group)
        payloads = [rows[row][1] for row in members]
        begin = position[members[0]] * SIZE
        if whole:
            words = np.frombuffer(b"".join([payload[_HEAD:] for payload in payloads]), dtype="<u2")
            columns = len(payloads[0]) // (2 * SIZE)
            values = words.reshape(len(payloads), columns, SIZE).transpose(1, 0, 2).reshape(columns, -1)
            yield slice(begin, begin + len(payloads) * SIZE), values
            continue
        pieces = [_listed(payload) for payload in payloads]
        places = [begin + row * SIZE + places for row, (places, _) in enumerate(pieces)]
        yield np.concatenate(places), np.concatenate([values for _, values in pieces], axis=1)


def places(blocks: IntArray, numbers: IntArray) -> IntArray:
    """Where people of these numbers stand in an array of these whole blocks one after another."""
    return np.searchsorted(blocks, numbers // SIZE) * SIZE + numbers % SIZE


def people(rows: Sequence[Row]) -> tuple[IntArray, Values]:
    """The numbers of the people listed, rising, and their values [columns, people]."""
    if not rows:
        return np.empty(0, dtype=np.int64), np.empty((1, 0), dtype=np.uint16)
    pieces = [(number, *_listed(payload)) for number, payload in rows]
    numbers = np.concatenate([number * SIZE + places for number, places, _ in pieces])
    return numbers, np.concatenate([values for *_, values in pieces], axis=1)


def _listed(payload: bytes) -> tuple[IntArray, Values]:
    words = np.frombuffer(payload, dtype="<u2")
    columns, listed = int(words[0]), int(words[1])
    if listed == _DENSE:
        whole = words[2:].reshape(columns, SIZE)
        places = np.flatnonzero(whole[0] != UNLISTED).astype(np.int64)
        return places, whole[:, places]
    places = words[2 : 2 + listed].astype(np.int64)
    return places, words[2 + listed :].reshape(columns, listed)
