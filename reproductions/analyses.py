"""What Yu et al. (2023) ask of individual spending: groups of people, and the loss of their records. Sensitive."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from privypurse._validate import float_vector
from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput


@dataclass(frozen=True)
class Group:
    """One group's average ε, and how well the model serves it."""

    name: Any
    people: int
    mean_epsilon: float
    accuracy: float | None


def by_group(epsilon: FloatArray, groups: Any, accuracy: dict[Any, float] | None = None) -> list[Group]:
    """Average ε of each group, ascending (Yu et al. 2023, Figures 2 and 6). Sensitive.

    ``groups`` has one entry for each ε; ``accuracy`` may say how often the model is right for each group, on records
    that took no part in training.
    """
    labels = np.asarray(groups)
    values = float_vector(epsilon, "epsilon")
    if labels.shape != values.shape:
        raise InvalidInput(f"groups has shape {labels.shape}, but there are {values.size:,} ε")
    found, place = np.unique(labels, return_inverse=True)
    names = found.tolist()  # as plain Python, whatever array they came in
    if accuracy is not None and (missing := [name for name in names if name not in accuracy]):
        raise InvalidInput(f"accuracy says nothing about the group {missing[0]!r}")
    people = np.bincount(place)
    means = np.bincount(place, weights=values) / people
    return [
        Group(names[k], int(people[k]), float(means[k]), None if accuracy is None else accuracy[names[k]])
        for k in np.argsort(means).tolist()
    ]


def correlation_with_loss(epsilon: FloatArray, losses: FloatArray) -> float:
    """Pearson's r between ε and the logarithm of the final training loss (Yu et al. 2023, Figure 5). Sensitive."""
    eps, loss = float_vector(epsilon, "epsilon"), float_vector(losses, "losses")
    usable = np.isfinite(loss) & (loss > 0)
    if eps.size != loss.size or usable.sum() < 2:
        raise InvalidInput("one loss for each ε is needed, and at least two that are positive")
    return correlation(eps[usable], np.log(loss[usable]))


def correlation(one: AnyArray, other: AnyArray) -> float:
    """Pearson's r."""
    return float(np.corrcoef(one, other)[0, 1])
