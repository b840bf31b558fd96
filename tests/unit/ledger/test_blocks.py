"""Blocks hold what was put in, however many people are listed, in whole blocks and in sparse ones."""

from __future__ import annotations

import numpy as np
import pytest

from privypurse.ledger.blocks import SIZE, UNLISTED, decoded, encoded, people


@pytest.mark.parametrize("seed", range(12))
def test_what_was_written_is_read_by_place_and_by_person(seed: int) -> None:
    """Six blocks, each empty, sparse, just dense enough or full, beside a plain table of everybody."""
    rng = np.random.default_rng(seed)
    listed = [0, 1, 7, SIZE // 2 - 1, SIZE // 2, SIZE]
    numbers = np.concatenate(
        [block * SIZE + np.sort(rng.choice(SIZE, rng.choice(listed), replace=False)) for block in (0, 1, 2, 4, 5, 9)]
    ).astype(np.int64)
    columns = int(rng.integers(1, 4))
    values = rng.integers(0, UNLISTED, size=(columns, numbers.size)).astype(np.uint16)
    rows = encoded(numbers, values)
    found, again = people(rows)
    assert np.array_equal(found, numbers)
    assert numbers.size == 0 or np.array_equal(again, values)

    plain = np.full((columns, 10 * SIZE), UNLISTED, dtype=np.uint16)
    plain[:, numbers] = values
    seen = np.full_like(plain, UNLISTED)
    for at, part in decoded(rows, np.arange(10)):
        seen[:, at] = part
    assert np.array_equal(seen, plain)
