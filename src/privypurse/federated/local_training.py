"""Training at a client: by which plan and optimizer, and whether it works at all, before anybody pays for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput, PrivyPurseError, PrivyPurseWarning
from privypurse.federated.blank_records import kind_of, made_up_like
from privypurse.federated.parameters import put, state_of, trained_in
from privypurse.federated.terms import Terms
from privypurse.plans import Plan, TrainingShape
from privypurse.training.execution import Execution
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.loop import train

_TRIED = 4  # made-up records that a model is tried on
_NEAR = 1e-4  # losses of one model, computed twice


def round_plan(
    terms: Terms, epsilon: FloatArray, rate: FloatArray, level_of: AnyArray, owner: AnyArray | None = None
) -> Plan:
    """What one round does with people of these levels."""
    shape = TrainingShape(
        steps=terms.local_steps,
        batch_size=terms.batch_size,
        clip_norm=terms.clip_norm,
        noise_multiplier=terms.noise_multiplier,
    )
    purses = epsilon, np.full(epsilon.size, terms.delta)  # the terms' certificate covers all rounds together
    return Plan.of_round("federated", terms.accountant, shape, purses, rate, level_of=level_of, owner=owner)


def sgd(model: nn.Module, terms: Terms) -> torch.optim.SGD:
    return torch.optim.SGD(trained_in(model).values(), lr=terms.learning_rate, momentum=terms.momentum)


def require_trainable(dataset: Dataset[Any], new_model: Callable[[], nn.Module], loss_fn: Loss, terms: Terms) -> None:
    """Raise if such records cannot train those models, so that a mistake costs nobody a round.

    On made-up records and parameters of our own: what is in the real ones must not decide whether a client joins.
    """
    if type(dataset) is TensorDataset:
        for tensor in dataset.tensors:
            fine = torch.isfinite(tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None]).all(1)
            if not fine.all():
                # Said here and not raised: a refusal would tell the server what is in somebody's record.
                warnings.warn(
                    f"{int((~fine).sum()):,} records have numbers that are not finite, such as record "
                    f"{int((~fine).nonzero()[0, 0]):,}; they pay and contribute nothing",
                    PrivyPurseWarning,
                    stacklevel=3,
                )
    shape, eagerly = replace(terms, local_steps=1, noise_multiplier=1.0), Execution(capture=False)
    model = new_model()
    if not trained_in(model):
        raise InvalidInput("every parameter of the model is frozen; there is nothing to train")
    optimizer = sgd(model, terms)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivyPurseWarning)  # seeded: nothing of it is released
            for size in (1, _TRIED):  # a draw may be of one
                plan = round_plan(shape, np.ones(1), np.ones(1), np.zeros(size, dtype=np.int64))
                records = made_up_like(kind_of(dataset), size)
                for forgiving in (False, True):  # one checks isolation, the other is how rounds are trained
                    train(model, optimizer, records, plan, loss_fn, execution=eagerly, seed=0, forgiving=forgiving)
            _require_alike(model, new_model, records, loss_fn)
    except PrivyPurseError:
        raise
    except Exception as error:
        raise InvalidInput(f"the model does not take these records: {error}") from error


def _require_alike(
    model: nn.Module, new_model: Callable[[], nn.Module], records: TensorDataset, loss_fn: Loss
) -> None:
    """Raise if new models with the same trained parameters compute something else.

    Frozen parameters and buffers do not travel. Where they are made by chance, every round would train another model.
    """
    if len(trained_in(model)) == len(list(model.parameters())) and not list(model.buffers()):
        return
    again = new_model()
    put(state_of(model), trained_in(again))
    device = next(model.parameters()).device
    inputs, label = [part.to(device) for part in records.tensors[:-1]], records.tensors[-1].to(device)

    def losses(each: nn.Module) -> Tensor:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)  # of dropout
            return loss_fn(each(*inputs), label)

    if not torch.allclose(losses(model), losses(again), rtol=_NEAR, atol=_NEAR, equal_nan=True):
        raise InvalidInput(
            "new_model() gives another model each time, also with the same trained parameters; frozen parameters and "
            "buffers do not travel: load them from a file that everybody has"
        )
