"""What each employer has: the Adult census by employer, and budgets that nobody granted. Put your own data here."""

from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse import datasets
from privypurse.budgets import preferences
from privypurse.ledger import row_ids
from privypurse.training.fingerprints import fingerprint

EMPLOYERS = (
    ("Private",),
    ("Self-emp-not-inc", "Self-emp-inc"),
    ("Federal-gov", "Local-gov", "State-gov"),
    ("?", "Without-pay", "Never-worked"),
)
DELTA = 1e-5  # people's own, as their ε is: under terms with a larger one they sit out
losses = partial(F.cross_entropy, reduction="none")  # one for each record


def silo(index: int) -> tuple[TensorDataset, pp.Budgets, np.ndarray]:
    """The people of one employer, their ε (0.1, 1 or 5, each at `DELTA`), and whose record is whose.

    The census has no ids and never changes, so its rows are named by their place. Give your people ids of their own,
    and leave out ``by_row`` where the ledger is made.
    """
    people = datasets.adult()
    employed = np.isin(np.asarray(people.columns["workclass"])[people.train], EMPLOYERS[index])
    x, y = people.features()[people.train][employed], np.asarray(people.labels())[people.train][employed]
    epsilon = preferences.three_levels(len(y), np.random.default_rng(index))
    records = _tensors(x, y)
    ids = row_ids(fingerprint(records), len(records))
    return records, pp.Budgets(epsilon, delta=DELTA, person=ids), ids


def test_records() -> TensorDataset:
    """People whom no silo trains on."""
    people = datasets.adult()
    return _tensors(people.features()[people.test], np.asarray(people.labels())[people.test])


def new_model() -> nn.Module:
    """The network is public: the server has it, too."""
    return nn.Linear(91, 2)


def _tensors(x: np.ndarray, y: np.ndarray) -> TensorDataset:
    return TensorDataset(torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y, dtype=torch.int64))
