"""A table of people for the tests, and brute force: one record at a time, in plain Python floats."""

import math

import numpy as np
import pandas as pd
import torch

import privypurse as pp

N = 60


def people(n=N, seed=0, persons=None):
    """A table with missing cells, and budgets; ``persons`` people own the rows."""
    rng = np.random.default_rng(seed)
    table = {
        "age": rng.integers(0, 100, n),
        "pay": np.where(rng.random(n) < 0.1, np.nan, np.where(rng.random(n) < 0.05, np.inf, rng.normal(300, 200, n))),
        "city": np.array([["Oslo", "Bergen", "Voss", None][k] for k in rng.integers(0, 4, n)], dtype=object),
        "smoker": rng.random(n) < 0.3,
    }
    person = None if persons is None else rng.integers(0, persons, n)
    epsilon = rng.choice([0.2, 0.5, 1.0, 3.0], n)
    if person is not None:
        epsilon = rng.choice([0.2, 0.5, 1.0, 3.0], persons)[person]
    return table, pp.Budgets(epsilon, person=person)


FORMS = {
    "mapping": lambda table: table,
    "frame": pd.DataFrame,
    "tensors": lambda table: {k: torch.tensor(v) if v.dtype.kind in "fib" else v for k, v in table.items()},
}


class Silent:
    """A source without noise, so that what was added up can be seen."""

    secure = False

    def normal(self, count):
        return np.zeros(count)


def silenced(analyst):
    analyst._source = Silent()
    return analyst


class Reference:
    """Feldman & Zrnic (2021), Algorithm 2, one person at a time."""

    def __init__(self, owner, totals):
        self.owner = [int(person) for person in owner]
        self.total = [float(total) for total in totals]
        self.spent = [0.0] * len(self.total)
        self.refused = 0

    def ask(self, vectors, clip, noise, bound=None):
        """The sum without noise. ``vectors`` is one list of floats for each record, None where it is not touched."""
        size = next((len(vector) for vector in vectors if vector is not None), 1)
        sums = {}
        for person, vector in zip(self.owner, vectors, strict=True):
            if vector is not None and all(math.isfinite(v) for v in vector):
                before = sums.get(person, [0.0] * size)
                sums[person] = [a + float(b) for a, b in zip(before, vector, strict=True)]
        answer = [0.0] * size
        for person, vector in sums.items():
            part = [min(max(v, bound[0]), bound[1]) for v in vector] if bound else vector
            norm = math.hypot(*part)
            if norm > clip:
                part = [v * clip / norm for v in part]
                norm = clip
            cost = (norm / noise) ** 2
            if self.spent[person] + cost <= self.total[person] * (1 - 1e-9):
                self.spent[person] += cost
                answer = [a + b for a, b in zip(answer, part, strict=True)]
            else:
                self.refused += 1
        return answer
