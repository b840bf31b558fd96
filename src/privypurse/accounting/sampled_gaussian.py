"""Rényi divergence of the Poisson-sampled Gaussian: certified upper bounds, many at once.

With rate q and noise multiplier σ the divergence at order α is log A(α) / (α-1), where

    A(α) = E[(1 - q + q·e^U)^α],   U = (2z - 1) / 2σ²,   z ~ N(0, σ²)

(Mironov, Talwar & Zhang 2019, arXiv 1908.10530, §3; removing the record is the worse direction, their Theorem 5).
Every number returned here is at least the true one: integer orders are a sum of positive terms, whose rounding error
is bounded and added; fractional orders are the smaller of two upper bounds, a chord and a trapezoidal sum whose
discretisation error is bounded *relative to A* and added.
"""

import numpy as np
from scipy import special

from privypurse.arrays import FloatArray, IntArray

_UNIT = float(np.finfo(np.float64).eps)
_ELEMENTS = 4_000_000  # how many floats one work array may hold
_CACHED = 1 << 16  # and how many a loop goes over again and again
_TAIL = 12.0  # standard deviations beyond which the trapezoidal sum is cut; Φ(-12) = 1.8e-33
_DISCRETISATION = 36.0  # aim for a relative discretisation error of e^-36 = 2e-16
_USELESS = 30.0  # nats a step: an order that costs this much never gives the best ε
_MOST_NODES = 20_000  # beyond this (σ below about 0.03) the chord alone has to do
_MOST_NOISE = 1e150  # whose square a float holds; more noise costs no more, and is charged as this
_LEAST_NOISE = 1e-150  # below it a step costs more than a float holds
TINY = float(np.finfo(np.float64).tiny)
"""The smallest float with all its digits: what costs anything at all costs this much at least."""


def rdp(rates: FloatArray, noise_multipliers: FloatArray, orders: FloatArray) -> FloatArray:
    """Upper bounds on the Rényi divergence: one row for each (rate, noise multiplier), one column an order.

    ``rates`` in [0, 1] and ``noise_multipliers`` > 0 have the same length; ``orders`` > 1 are ascending.
    """
    q = np.asarray(rates, dtype=np.float64)
    sigma = np.minimum(np.asarray(noise_multipliers, dtype=np.float64), _MOST_NOISE)
    alpha = np.asarray(orders, dtype=np.float64)
    held = sigma >= _LEAST_NOISE
    out = np.full((q.size, alpha.size), np.inf)
    # Unsampled: a plain Gaussian, α / 2σ² (Mironov 2017, Proposition 7).
    out[held] = alpha / (2 * sigma[held] ** 2)[:, None] * (1 + 4 * _UNIT)
    inner = np.flatnonzero((q > 0) & (q < 1) & held)
    if inner.size:
        # Amplification never costs more than no sampling at all.
        out[inner] = np.minimum(out[inner], _log_moments(q[inner], sigma[inner], alpha) / (alpha - 1.0))
    # Rate 0: nothing happens. Any other costs something, however little a float can tell of it.
    return np.where((q == 0)[:, None], 0.0, np.maximum(out, TINY))


def _log_moments(q: FloatArray, sigma: FloatArray, alpha: FloatArray) -> FloatArray:
    """log A(α), rounded up."""
    whole = alpha == np.floor(alpha)
    below = np.floor(alpha[~whole]).astype(np.int64)
    needed = np.unique(np.concatenate([alpha[whole].astype(np.int64), below, below + 1]))
    needed = needed[needed >= 2]
    at_integers = integer_log_moments(q, sigma, needed)
    out = np.empty((q.size, alpha.size))
    out[:, whole] = at_integers[:, np.searchsorted(needed, alpha[whole].astype(np.int64))]
    if below.size:
        fractional = alpha[~whole]
        chord = _chord(at_integers, needed, fractional, below)
        out[:, ~whole] = np.minimum(chord, quadrature_log_moments(q, sigma, fractional))
    return out


def _chord(at_integers: FloatArray, integers: IntArray, alpha: FloatArray, below: IntArray) -> FloatArray:
    """log A is convex in α (it is a cumulant function) and 0 at α = 1: its chords lie above it."""
    values = np.concatenate([np.zeros((at_integers.shape[0], 1)), at_integers], axis=1)
    place = np.searchsorted(integers, below + 1)  # of the integer above; the one below sits just before it
    share = alpha - below
    return (values[:, place] * (1 - share) + values[:, place + 1] * share) * (1 + 4 * _UNIT)


def integer_log_moments(q: FloatArray, sigma: FloatArray, alpha: IntArray) -> FloatArray:
    """log A at integer orders ≥ 2.

    A(α) = Σ_k C(α,k) (1-q)^{α-k} q^k e^{k(k-1)/2σ²} (Mironov et al. 2019, Eq. 5). The binomial weights sum
    to 1, so A - 1 is the same sum with e^{…} - 1, which is 0 for k < 2: positive terms only, no cancellation,
    and a relative error that stays small however close A is to 1.
    """
    # The k = α term alone shows that beyond some order a single step costs more than _USELESS: no such order is
    # ever the best, and the bound without sampling, α(α-1)/2σ², serves there.
    reach = 2 * sigma**2 * (_USELESS - np.log(q))
    out = alpha * (alpha - 1) / (2 * sigma**2)[:, None] * (1 + 4 * _UNIT)
    rows = np.argsort(reach, kind="stable")
    while rows.size:
        # Rows with the same reach together: as many as fit into memory with the orders that the last one needs.
        terms_to = np.cumsum(alpha - 1)
        needed = np.searchsorted(alpha, reach[rows], side="right").clip(1)
        fits = np.arange(1, rows.size + 1) * terms_to[needed - 1] <= _ELEMENTS
        some = max(1, int(np.argmin(fits)) if not fits.all() else rows.size)
        orders = alpha[: int(needed[some - 1])]
        sums = _positive_sums(q[rows[:some]], sigma[rows[:some]], orders)
        # Each row stops at its own reach, so that it does not depend on its company.
        within = np.arange(orders.size) < needed[:some, None]
        out[rows[:some], : orders.size] = np.where(within, sums, out[rows[:some], : orders.size])
        rows = rows[some:]
    return out


def _positive_sums(q: FloatArray, sigma: FloatArray, alpha: IntArray) -> FloatArray:
    """log A by the sum, for all pairs of rates and orders at once."""
    # One flat axis of all (order, k) pairs; each order's terms are summed by one reduceat.
    lengths = alpha - 1
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    order = np.repeat(alpha, lengths)
    k = np.arange(lengths.sum()) - np.repeat(starts, lengths) + 2
    log_factorial = special.gammaln(np.arange(alpha.max() + 1) + 1.0)
    log_binomial = log_factorial[order] - log_factorial[k] - log_factorial[order - k]
    rate, twice_variance = q[:, None], 2 * sigma[:, None] ** 2
    exponent = (k * (k - 1)) / twice_variance
    terms = (order - k) * np.log1p(-rate) + k * np.log(rate)
    terms += log_binomial
    terms += exponent
    # e^x - 1 = e^x (1 - e^-x); beyond x = 40 the second factor is 1 in double precision, and rounding it up is safe.
    near = exponent < 40
    terms[near] += np.log(-np.expm1(-exponent[near]))
    peak = np.maximum.reduceat(terms, starts, axis=1)
    terms -= np.repeat(peak, lengths, axis=1)
    np.exp(terms, out=terms)
    log_excess = peak + np.log(np.add.reduceat(terms, starts, axis=1))
    # Every term was made by fewer than 16 roundings of numbers no larger than this.
    a = alpha.astype(np.float64)
    size = 3 * log_factorial[alpha] + a * (np.abs(np.log(rate)) - np.log1p(-rate)) + a * a / twice_variance
    return np.asarray(np.logaddexp(0.0, log_excess + 16 * _UNIT * (size + a)) * (1 + 4 * _UNIT))


def quadrature_log_moments(q: FloatArray, sigma: FloatArray, alpha: FloatArray) -> FloatArray:
    """log A at any orders > 1, by the trapezoidal rule with its error bounded and added.

    The integrand f(z) = N(z; 0, σ²)·(1-q+q·e^{U(z)})^α is analytic for |Im z| < πσ², and on the line
    Im z = b its integral is at most e^{b²/2σ²}·A. So with step h the rule's error is at most
    2·e^{a²/2σ²} / (e^{2πa/h} - 1) *times A*, for any a ≤ πσ² (Trefethen & Weideman 2014, Theorem 5.1).
    The two cut tails are bounded by Gaussian tails and added.
    """
    step = _steps(sigma)
    nodes = np.minimum(np.ceil((alpha[-1] + 2 * _TAIL * sigma) / step), 2.0 * _MOST_NODES).astype(np.int64) + 2
    out = np.full((q.size, alpha.size), np.inf)
    batch: list[int] = []
    for row in np.argsort(nodes, kind="stable").tolist():
        if nodes[row] > _MOST_NODES:
            break
        if batch and (len(batch) + 1) * nodes[row] > _ELEMENTS // 8:
            out[batch] = _trapezoid(q[batch], sigma[batch], alpha, step[batch], nodes[batch])
            batch = []
        batch.append(row)
    if batch:
        out[batch] = _trapezoid(q[batch], sigma[batch], alpha, step[batch], nodes[batch])
    return out


def _steps(sigma: FloatArray) -> FloatArray:
    """The widest step whose relative discretisation error is about e^-36."""
    variance = sigma**2
    narrow = 2 * np.pi**2 * variance / (_DISCRETISATION + np.pi**2 * variance / 2)  # a = πσ², right when h ≤ 2
    wide = np.pi * sigma * np.sqrt(2 / _DISCRETISATION)  # a = 2πσ²/h, right when h > 2
    return np.where(wide > 2, wide, np.minimum(narrow, 2.0))


def _log_discretisation_error(sigma: FloatArray, step: FloatArray) -> FloatArray:
    """log of the relative error bound 2·e^{a²/2σ²}/(e^{2πa/h} - 1) at the best a ≤ πσ²."""
    a = np.minimum(np.pi, 2 * np.pi / step) * sigma**2
    turns = 2 * np.pi * a / step
    bound = np.log(2.0) + a**2 / (2 * sigma**2) - turns - np.log1p(-np.exp(-turns))
    return np.asarray(bound, dtype=np.float64)


def _trapezoid(q: FloatArray, sigma: FloatArray, alpha: FloatArray, step: FloatArray, nodes: IntArray) -> FloatArray:
    """The rule for several rows, each with its own step and number of nodes, so that none depends on the others."""
    q, sigma, step, own = q[:, None], sigma[:, None], step[:, None], nodes[:, None]
    index = np.arange(int(nodes.max()))
    z = -_TAIL * sigma + step * index
    u = (2 * z - 1) / (2 * sigma**2)
    log_base = np.logaddexp(np.log1p(-q), np.log(q) + u)
    log_density = np.where(index < own, -0.5 * (z / sigma) ** 2, -np.inf)
    log_width = np.log(step / sigma) - 0.5 * np.log(2 * np.pi)
    last_z, last_u, last_base = (np.take_along_axis(values, own - 1, axis=1) for values in (z, u, log_base))
    largest = np.maximum(np.abs(log_base[:, :1]), np.abs(last_base))  # log_base rises: its ends are largest
    relative = np.exp(_log_discretisation_error(sigma, step))
    left = special.log_ndtr(-_TAIL)  # before the first node the base is at most 1
    out = np.empty((q.shape[0], alpha.size))
    together = max(1, _CACHED // log_base.size)
    for first in range(0, alpha.size, together):
        order = alpha[first : first + together]  # along the middle axis, or the columns
        terms = order[:, None] * log_base[:, None] + log_density[:, None]
        peak = terms.max(axis=2)
        terms -= peak[:, :, None]
        total = np.log(np.exp(terms, out=terms).sum(axis=2)) + peak + log_width
        # Beyond the last node (1-q+q·e^U)·e^-U only falls, and what is left is a Gaussian tail around α.
        right = (
            order * (last_base - last_u)
            + order * (order - 1) / (2 * sigma**2)
            + special.log_ndtr((order - last_z) / sigma)
        )
        total = np.logaddexp(total, np.logaddexp(left, right))
        size = order * largest + 0.5 * (last_z / sigma) ** 2
        rounding = 16 * _UNIT * (size + np.log(own) + 10)
        out[:, first : first + together] = total - np.log1p(-relative) + rounding
    return np.maximum(out, 0.0)
