"""A linear classifier on features that somebody else's model made."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from privypurse.errors import InvalidInput
from reproductions.choice import CENTRED


def scaled(features: Tensor, how: str) -> Tensor:
    """Features [n, width] on one scale, each record by itself.

    "layer": mean 0 and deviation 1. "unit": of these, length 1, which leaves more of a clipped gradient to the layers
    below. "centred": square roots, with their signs, of length 1; `reproductions.centring` takes their centre away.
    """
    if how == CENTRED:
        return F.normalize(features.sign() * features.abs().sqrt())
    if how not in ("layer", "unit"):
        raise InvalidInput(f"scaling is {how!r}; choose layer, unit or {CENTRED}")
    out = F.layer_norm(features, features.shape[-1:])
    return out / features.shape[-1] ** 0.5 if how == "unit" else out


def probe(width: int, classes: int) -> nn.Linear:
    """The classifier, without an opinion."""
    layer = nn.Linear(width, classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
