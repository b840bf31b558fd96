"""From a Rényi curve to (ε, δ)."""

import numpy as np

from privypurse.arrays import FloatArray


def epsilon_from_rdp(rdp: FloatArray, orders: FloatArray, delta: FloatArray | float) -> FloatArray:
    """The best ε over all orders; ``rdp[..., k]`` is the cost at ``orders[k]``, ``delta`` broadcasts to the rest.

    Canonne, Kamath & Steinke (2020, arXiv 2004.00010), Proposition 12: ε = ρ + log((α-1)/α) - (log δ + log α)/(α-1).
    It never falls below about (log 1/δ - log α)/(α-1) at the largest order, even for ρ = 0; that keeps it
    continuous in ρ, which look-ups rely on.

    The best order may be taken because the curve is that of releases fixed beforehand. A filter may not
    (rule 5).
    """
    dlt = np.asarray(delta, dtype=np.float64)[..., None]
    epsilon = rdp + np.log1p(-1.0 / orders) - (np.log(dlt) + np.log(orders)) / (orders - 1.0)
    return np.asarray(np.maximum(epsilon.min(axis=-1), 0.0), dtype=np.float64)


def epsilon_from_rdp_mironov(rdp: FloatArray, orders: FloatArray, delta: FloatArray | float) -> FloatArray:
    """Mironov (2017, arXiv 1702.07476), Proposition 3: ε = ρ + log(1/δ)/(α-1). Looser; for comparison."""
    dlt = np.asarray(delta, dtype=np.float64)[..., None]
    return np.asarray((rdp - np.log(dlt) / (orders - 1.0)).min(axis=-1), dtype=np.float64)
