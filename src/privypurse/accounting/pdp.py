"""(Φ, Δ)-personalised DP: one (ε, δ) for each record, as vectors (Heo et al. 2023, Definition 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privypurse._validate import float_vector
from privypurse.accounting.rdp import epsilon_from_rdp, epsilon_from_rdp_mironov
from privypurse.arrays import FloatArray, frozen
from privypurse.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class PersonalisedDP:
    """Record i is (epsilon[i], delta[i])-DP: an upper bound for each record on its own."""

    epsilon: FloatArray
    delta: FloatArray

    def __post_init__(self) -> None:
        eps, dlt = float_vector(self.epsilon, "epsilon"), float_vector(self.delta, "delta")
        if eps.size != dlt.size:
            raise InvalidInput(f"epsilon has {eps.size} entries but delta has {dlt.size}; give one each a record")
        if not (np.isfinite(eps).all() and (eps >= 0).all() and (dlt >= 0).all() and (dlt <= 1).all()):
            raise InvalidInput("every epsilon must be finite and at least 0, every delta in [0, 1]")
        object.__setattr__(self, "epsilon", frozen(eps))
        object.__setattr__(self, "delta", frozen(dlt))


def compose(parts: Sequence[PersonalisedDP]) -> PersonalisedDP:
    """Heo et al. (2023, arXiv 2305.15165), Theorem 4.3: budgets and failure probabilities add up, record by record.

    Each part may be chosen after seeing the earlier outputs, but every record's (ε, δ) of each part must be
    fixed beforehand and be paid by drawn and undrawn records alike (rule 1).
    """
    if not parts:
        raise InvalidInput("parts is empty; compose at least one")
    if len({part.epsilon.size for part in parts}) > 1:
        raise InvalidInput("parts speak of different numbers of records; they must be about the same data set")
    epsilon = np.sum([part.epsilon for part in parts], axis=0)
    delta = np.minimum(np.sum([part.delta for part in parts], axis=0), 1.0)
    up = 1 + (len(parts) + 1) * np.finfo(np.float64).eps  # more than adding them up may have rounded down
    return PersonalisedDP(epsilon * up, np.minimum(delta * up, 1.0))


def from_individual_rdp(
    rdp: FloatArray, orders: FloatArray, delta: FloatArray | float, *, published: bool = False
) -> PersonalisedDP:
    """Heo et al. (2023), Theorem 4.8: each record's Rényi curve ``rdp[i]`` to its (ε, δ).

    The curve must bound *both* directions (the theorem's Definition 4.7 writes one only, which gives half of
    the (ε, δ) inequality). ``published`` takes Mironov's conversion, as the theorem does; the default is tighter.
    """
    curves = np.atleast_2d(np.asarray(rdp, dtype=np.float64))
    each = np.broadcast_to(np.asarray(delta, dtype=np.float64), curves.shape[0])
    convert = epsilon_from_rdp_mironov if published else epsilon_from_rdp
    epsilon = convert(curves, np.asarray(orders, dtype=np.float64), each) * (1 + 1e-12) + 1e-14
    return PersonalisedDP(epsilon, np.array(each))
