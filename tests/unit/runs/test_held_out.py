"""Who is held out follows from their own id: whole people, whoever else is there, in whatever order."""

import numpy as np
import pytest

import privypurse as pp
from privypurse.runs.held_out import HeldOut

IDS = np.array([f"p{number}" for number in range(2000)])


def shuffled(ids, share):
    """The twin: a fifth of the rows by a seeded shuffle, as usual."""
    out = np.zeros(ids.size, dtype=bool)
    out[np.random.default_rng(0).permutation(ids.size)[: round(share * ids.size)]] = True
    return out


def moved(split):
    """How many people change sides when the first one leaves."""
    return int((split(IDS)[1:] != split(IDS[1:])).sum())


def test_nobody_else_moves_anybody():
    assert moved(HeldOut(0.2).of) == 0
    assert moved(lambda ids: shuffled(ids, 0.2)) > 100
    turned = np.random.default_rng(1).permutation(IDS.size)
    assert (HeldOut(0.2).of(IDS[turned]) == HeldOut(0.2).of(IDS)[turned]).all()


def test_all_rows_of_a_person_are_on_one_side_however_the_id_is_written():
    assert (HeldOut(0.5).of(np.repeat(IDS, 3)) == np.repeat(HeldOut(0.5).of(IDS), 3)).all()
    numbers = np.arange(300)
    written = np.array([f" {number} " for number in numbers])
    assert (HeldOut(0.5).of(numbers) == HeldOut(0.5).of(written)).all()


def test_the_share_is_about_what_is_asked_and_seeds_choose_apart():
    for share in (0.05, 0.2, 0.9):
        out = HeldOut(share).of(IDS).sum()
        assert abs(out - share * IDS.size) < 5 * (IDS.size * share * (1 - share)) ** 0.5
    one, two = HeldOut(0.5).of(IDS), HeldOut(0.5, seed=1).of(IDS)
    assert abs((one & two).sum() - 500) < 5 * (2000 * 0.25 * 0.75) ** 0.5
    for share in (0, 1, -0.1, 1.5):
        with pytest.raises(pp.InvalidInput, match="share must be"):
            HeldOut(share)
