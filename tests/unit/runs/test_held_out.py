"""Who is held out follows from their own id: whole people, whoever else is there, in whatever order."""

from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from ledger_tools import EPSILONS, charged, new_ledger
from privypurse.runs.config import parse_config
from privypurse.runs.held_out import HeldOut
from privypurse.runs.training_run import train_by

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


CONFIG = """
[data]
table = "people.csv"
label = "y"
classes = ["0", "1"]
person = "id"
held_out = { share = 0.4 }
features = { x = { low = 0, high = 60 } }
[budgets]
epsilon = "epsilon"
[plan]
steps = 3
batch_size = 10
noise_multiplier = 3.0
at_most = 0.3
accountant = "rdp"
[model]
kind = "mlp"
hidden = []
[optimizer]
name = "SGD"
lr = 0.1
[training]
device = "cpu"
"""


def trained_and_charged(folder, monkeypatch):
    """A training of sixty people with two rows each under a ledger, and which of them were charged for it."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    ids, grants = IDS[:60], np.array(EPSILONS)[np.arange(60) % 3]
    rows = [
        f"{who},{grant:g},{place},{place % 2}" for place, (who, grant) in enumerate(zip(ids, grants, strict=True))
    ]
    Path("people.csv").write_text("\n".join(["id,epsilon,x,y", *rows, *rows]) + "\n")
    ledger = new_ledger(folder)
    ledger.join(ids, grants)
    done = train_by(parse_config(CONFIG), ledger=ledger)
    return done, (charged(ledger, ids) > 0).all(axis=1)


def test_under_a_ledger_who_is_held_out_is_charged_nothing(tmp_path, monkeypatch):
    out = HeldOut(0.4).of(IDS[:60])
    done, paid = trained_and_charged(tmp_path / "right", monkeypatch)
    assert done.score.records == 2 * out.sum() > 20
    assert (paid == ~out).all()
    # The twin: everybody trains, and pays.
    monkeypatch.setattr(HeldOut, "of", lambda self, ids: np.zeros(ids.size, dtype=bool))
    assert trained_and_charged(tmp_path / "wrong", monkeypatch)[1].all()
