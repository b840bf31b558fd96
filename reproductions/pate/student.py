"""What learns from the votes: a student that sees the labels alone, and one that sees all public inputs as well."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from privypurse.arrays import AnyArray, FloatArray
from reproductions.pate.ridge import Ridge


def supervised(ridge: Ridge, x: Tensor, labels: AnyArray, inputs: Tensor, classes: int) -> AnyArray:
    """Classes of ``inputs`` by a ridge classifier that was trained on the labelled records ``x`` alone."""
    held = torch.ones(1, len(x), dtype=torch.bool)
    scores = ridge.scores(x[None], torch.as_tensor(labels)[None], held, classes, inputs)
    return np.asarray(scores[0].argmax(dim=1))


@dataclass(frozen=True)
class Spreading:
    """Labels that spread over a graph of neighbours (Zhou et al. 2004): F = (I - reach·S)⁻¹·Y.

    S is the symmetric graph of everyone's nearest neighbours, weighted by e^{sharpness·(cosine - 1)} and divided by
    the roots of its degrees. Each class is scaled to the same mass. New inputs take the mean of their neighbours'.
    """

    neighbours: int = 8
    sharpness: float = 20.0
    reach: float = 0.95
    rounds: int = 60
    """How often scores go one edge further: the sum Σ (reach·S)^k·Y up to there."""

    def graph(self, x: Tensor) -> sparse.csr_array:
        near = self._near(x, x, own=True)
        both = near.maximum(near.T)
        root = sparse.diags_array(1 / np.sqrt(both.sum(axis=1)))
        return sparse.csr_array(root @ both @ root)

    def spread(self, graph: sparse.csr_array, place: AnyArray, labels: AnyArray, classes: int) -> FloatArray:
        """Scores [records, classes] from the labels of the records at ``place``."""
        known = np.zeros((graph.shape[0], classes))
        known[place, labels] = 1.0
        scores = known
        for _ in range(self.rounds):
            scores = self.reach * (graph @ scores) + (1 - self.reach) * known
        mass = scores.sum(axis=0)
        return np.asarray(scores / np.where(mass > 0, mass, 1.0))  # a class that nobody named stays without scores

    def of_new(self, x: Tensor, scores: FloatArray, inputs: Tensor) -> AnyArray:
        """Classes of inputs that are not in the graph."""
        return np.asarray((self._near(inputs, x) @ scores).argmax(axis=1))

    def _near(self, some: Tensor, x: Tensor, own: bool = False) -> sparse.csr_array:
        """Weights of the nearest neighbours; with ``own`` a record is none of itself."""
        cosine, place = [], []
        for k in range(0, len(some), 1_000):
            alike = some[k : k + 1_000] @ x.T
            if own:
                alike[torch.arange(len(alike)), torch.arange(k, k + len(alike))] = -1.0
            best = alike.topk(self.neighbours, dim=1)
            cosine.append(best.values)
            place.append(best.indices)
        weight = (self.sharpness * (torch.cat(cosine) - 1)).exp().numpy().astype(np.float64)
        columns = torch.cat(place).numpy()
        rows = np.repeat(np.arange(len(some)), self.neighbours)
        return sparse.csr_array((weight.ravel(), (rows, columns.ravel())), shape=(len(some), len(x)))
