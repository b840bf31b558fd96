"""Steps, batch and learning rate of private training as functions of public numbers: the rule behind `suggest`.

In the limit of many steps (Bu et al. 2020, arXiv 1911.11607) a person with Gaussian budget μ may be drawn at a rate
proportional to μ, and the whole training holds a fixed amount of signal to noise, M = Σ μ over all people, whatever
steps and batch are (Sander et al. 2023, arXiv 2210.03403, find the same for one ε). What is left to choose:

- the *walk* w, how far noise alone moves a weight: lr·σ·C·√T / (B·(1-m)). The clip norm counts by its product with
  the learning rate (Mohapatra et al. 2021, arXiv 2111.04906), and the noise of T steps adds up to √T of one.
- T: people together move the weights by w·M in the whole training and by w·M/T in a step; T is such that this is
  about `_STEP`, or for small networks up to `_LONGEST_STEP`. More steps cost time alone.
- B: subsampling at rate q costs √(x/log(1+x)) times the noise of full batches, x = (μ/q)²/T. B is about where that is
  3 % more; larger batches buy next to nothing.

The constants are calibrated on public benchmarks (docs/suggest.md).
"""

from __future__ import annotations

import math

import numpy as np

from privypurse._validate import integer
from privypurse.accounting import gdp
from privypurse.budgets.levels import Levels
from privypurse.plans import TrainingShape

MOMENTUM, CLIP_NORM = 0.9, 1.0
NUMBER_RATE = 0.1
"""Of SGD without momentum, where a number is learned: what `privypurse init` writes too. The rule is for classes."""
_WALK = 0.6
"""Of each weight, at most; of all weights together `_ALL_WALK`: wide networks bear less for each."""
_ALL_WALK = 24.0
_SMALL_WALK = 0.3
"""Beyond it steps become longer instead of more: so small a network bears that."""
_STEP, _LONGEST_STEP = 4.0, 8.0
"""How far a step goes if all gradients reach their clip norm and agree; the longest where steps are given."""
_ENOUGH = 3.0
"""A μ beyond which noise limits nothing, and more steps for it would be wasted: ε of about 17 at δ = 1e-5."""
_BATCH = 2.9
"""B = 2.9·M/√T is where subsampling costs 3 % more noise: x = 0.12 in the formula above."""
_LEAST_STEPS, _MOST_STEPS = 200, 5_000
_LEAST_BATCH, _MOST_EPOCHS = 256, 100


def total_signal(levels: Levels, method: str) -> float:
    """M: the μ of Gaussian DP that each person's part in the training has, added up, each up to `_ENOUGH`."""
    some = _taking_part(levels, method)
    mu = np.minimum(gdp.mu(some.epsilon, some.delta), _ENOUGH)
    return float(mu.min() * some.total if method in ("uniform", "exclude") else mu @ some.people)


def _taking_part(levels: Levels, method: str) -> Levels:
    """All, but with `exclude` those below the mean ε."""
    if method != "exclude":
        return levels
    mean = float(levels.people @ levels.epsilon) / levels.total
    return levels.only(levels.epsilon >= min(mean, float(levels.epsilon.max())))


def sizes(levels: Levels, method: str, weights: int, steps: int | None, batch_size: int | None) -> TrainingShape:
    """Steps and batch size for these levels and so many weights; those that are given stay."""
    signal = total_signal(levels, method)
    if steps is None:
        wanted = min(_longest_walk(weights), _SMALL_WALK) * signal / _STEP
        steps = int(np.clip(_rounded(wanted), _LEAST_STEPS, _MOST_STEPS))
    steps = integer(steps, "steps")
    if batch_size is None:
        batch_size = _batch(signal, steps, _taking_part(levels, method).total)
    return TrainingShape(steps=steps, batch_size=batch_size, clip_norm=CLIP_NORM)


def walk_of(shape: TrainingShape, weights: int) -> float:
    """How far noise alone may move each of so many weights, so that no step is longer than the longest."""
    assert shape.noise_multiplier is not None
    a_step = shape.batch_size / (shape.noise_multiplier * math.sqrt(shape.steps))  # that moves a weight so far
    return min(_longest_walk(weights), _LONGEST_STEP / a_step)


def learning_rate(shape: TrainingShape, weights: int) -> float:
    """Of SGD with `MOMENTUM`: noise alone moves each weight by its walk. It follows from the plan's public constants.

    A step adds noise of deviation lr·σ·C/B to each weight, momentum m multiplies what it does by 1/(1-m), and T
    independent steps by √T.
    """
    return float(f"{walk_of(shape, weights) * (1 - MOMENTUM) / noise_of_all_steps(shape):.2g}")


def noise_of_all_steps(shape: TrainingShape) -> float:
    """How far noise alone moves a weight in the whole training, at a learning rate of 1 without momentum."""
    assert shape.noise_multiplier is not None
    return shape.noise_multiplier * shape.clip_norm * math.sqrt(shape.steps) / shape.batch_size


def _longest_walk(weights: int) -> float:
    return min(_WALK, _ALL_WALK / math.sqrt(weights))


def _batch(signal: float, steps: int, people: int) -> int:
    """The power of two that is nearest to what subsampling needs, within what there is and what is affordable."""
    wanted = min(_BATCH * signal / math.sqrt(steps), _MOST_EPOCHS * people / steps)
    return min(people, max(_LEAST_BATCH, 1 << max(0, round(math.log2(wanted)))))


def _rounded(value: float) -> float:
    """To one of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 times a power of ten: nobody should read more into it."""
    power = 10.0 ** math.floor(math.log10(value))
    return min((each * power for each in (1, 1.5, 2, 3, 4, 5, 6, 8, 10)), key=lambda near: abs(near - value))
