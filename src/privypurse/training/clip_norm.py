"""Choosing a clip norm privately: the median of everybody's gradient norm, and what asking for it costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from privypurse.arrays import IntArray
from privypurse.errors import InvalidInput
from privypurse.queries import LedgerPurses, statistics
from privypurse.queries.noisy_sums import Purses
from privypurse.randomness import randomness
from privypurse.training.gradients import Recorder, norms, recorded
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.isolation.model import require_isolated
from privypurse.training.model_inputs import arguments
from privypurse.training.physical_batches import Batch, loaded, moved
from privypurse.training.step_randomness import Keys, alone, keyed

_AT_ONCE = 512


def median_gradient_norm(
    model: nn.Module,
    loss_fn: Loss,
    dataset: Dataset[Any],
    purses: Purses,
    *,
    cap: float,
    noise: float,
    person: Any = None,
    seed: int | None = None,
) -> statistics.Quantiles:
    """The private median of the records' gradient norms with the model as it is (Abadi et al. 2016 clip there).

    ``cap`` is a public number that norms are clipped to, ``noise`` the deviation, in records, of the noise on each of
    20 counts. Every record pays for its own bits out of ``purses``: a `Filter` with one purse for each record, which
    training has to leave that much, or `queries.LedgerPurses`, with ``person``, the id of each record's owner: whose
    record is missing contributes nothing. Records, not persons, are the unit: for data in which each person has one.
    ``values[0]`` is the median, and ``cost`` what it cost at most.
    """
    place = _places(purses, person, len(dataset))  # type: ignore[arg-type]
    device = next(model.parameters()).device
    pieces: Iterator[IntArray] = (piece.numpy() for piece in torch.split(torch.arange(place.size), _AT_ONCE))
    batches = (Batch(piece, piece, np.arange(piece.size)) for piece in pieces)
    recorder, keys, found = Recorder(model), Keys(randomness(seed)), []
    # As in a step: nobody's norm may hang on others, by the model or by whose mask of dropout is whose.
    with alone(), keyed(keys.next(), device):
        for batch, data in loaded(dataset, batches):
            x, y = moved(data, device)
            due = keys.due("model")
            if due:
                require_isolated(recorder, *arguments(x), batch.records.size)
            found.append(norms(recorded(recorder, loss_fn, x, y, due)[0]).cpu())
    each = np.full(purses.total.size, np.nan)
    each[place] = torch.cat(found).double().numpy()
    return statistics.quantiles(each, purses, probabilities=(0.5,), cap=cap, noise=noise, seed=seed)


def _places(purses: Purses, person: Any, records: int) -> IntArray:
    """For each record the place of the purse that pays for it."""
    if isinstance(purses, LedgerPurses):
        if person is None:
            raise InvalidInput("a ledger's purses are people's; give person=, the id of each record's owner")
        return purses.places(person, records)
    if person is not None:
        raise InvalidInput("a Filter's purses have no ids, and hold for records in their order; leave person= out")
    if purses.total.shape != (records,):
        raise InvalidInput(f"purses holds {purses.total.size:,} purses for {records:,} records; give one each")
    return np.arange(records)
