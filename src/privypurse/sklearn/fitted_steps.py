"""What learns from the same people beside a private estimator: steps of its pipeline, and what fits it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils import get_tags

from privypurse.arrays import AnyArray
from privypurse.sklearn.public_encoder import PublicEncoder
from privypurse.sklearn.said import FittedStep

_PUBLIC = (PublicEncoder, PolynomialFeatures, FrozenEstimator)
"""Steps that follow from the number of columns alone, or were fitted beforehand and learn nothing now."""
_FIT_ONLY = (MultiOutputClassifier, MultiOutputRegressor)
"""What fits others several times, which each of them is charged for, and learns nothing besides."""


def warn_of_fitted_steps(estimator: Any) -> None:
    """Warn of each step that learns from data in a pipeline that fits this estimator now, and of what fits it so.

    A step tells nobody that it was fitted, so pipelines are looked for among the callers. What was fitted and applied
    elsewhere, or calls from another process, and what a function of a FunctionTransformer does, is not seen.
    """
    before, around = [], []
    for caller, _ in _callers(estimator):
        if isinstance(caller, Pipeline):
            before += list(_learning(caller.steps[:-1]))
        elif not isinstance(caller, _FIT_ONLY) and not _public(caller):
            around.append(type(caller).__name__)
    name = type(estimator).__name__
    said = [f"{', '.join(before)}: fitted on the same people before {name}"] if before else []
    said += [f"{', '.join(around)}: learns or chooses by the same people's records around {name}"] if around else []
    if said:
        warnings.warn(
            f"{'; '.join(said)}. That tells about them what no budget pays for: the promise is void for the whole. "
            "For steps use privypurse.sklearn.PublicEncoder, with public ranges and categories, or fit them on "
            "public data beforehand; search and calibrate on public data",
            FittedStep,
            stacklevel=4,
        )


def rows_as_given(estimator: Any, cells: AnyArray) -> tuple[AnyArray, list[str] | None]:
    """The rows before the steps of the pipelines that fit this estimator now, and names of their columns, if any.

    They are ``cells``, which the estimator was given, where there is no such pipeline, where a search or another
    estimator stands between, or where there are more or fewer of them than a pipeline was given.
    """
    X = None
    for caller, given in _callers(estimator):
        if isinstance(caller, Pipeline):
            X = given
        elif not isinstance(caller, _FIT_ONLY):
            break
    try:
        rows = np.asarray(X)
    except (ValueError, TypeError):  # what a step makes rows of need be no table
        rows = np.empty(0)
    if rows.ndim != 2 or not rows.size or len(rows) != len(cells):
        return cells, _texts(getattr(estimator, "feature_names_in_", ()))
    return rows, _texts(getattr(X, "columns", ()))


def _texts(names: Iterable[Any]) -> list[str] | None:
    found = list(names)
    return found if found and all(isinstance(name, str) for name in found) else None


def _callers(estimator: Any) -> Iterator[tuple[Any, Any]]:
    """Other estimators whose methods are running, each with the X of its method, from the inside out.

    Of pipelines those that end in the former.
    """
    found: list[Any] = []
    frame, last = sys._getframe(1), estimator
    while frame is not None:
        caller = frame.f_locals.get("self") if frame.f_code.co_varnames[:1] == ("self",) else None
        new = isinstance(caller, BaseEstimator) and all(caller is not each for each in (estimator, *found))
        if new and (not isinstance(caller, Pipeline) or caller.steps[-1][1] is last):
            found.append(caller)
            last = caller
            yield caller, frame.f_locals.get("X")
        frame = frame.f_back  # type: ignore[assignment]


def _learning(steps: Any) -> Iterator[str]:
    """Of these (name, transformer, …), those that learn from data, also in pipelines and unions among them."""
    for name, step, *_ in steps:
        if isinstance(step, Pipeline):
            yield from _learning(step.steps)
        elif isinstance(step, FeatureUnion):
            yield from _learning(step.transformer_list)
        elif isinstance(step, ColumnTransformer):
            yield from _learning(step.transformers)
        elif not _public(step):
            yield f"{type(step).__name__} (step {name!r})"


def _public(step: Any) -> bool:
    if step is None or isinstance(step, (str, *_PUBLIC)):  # "passthrough", "drop"
        return True
    try:
        return not get_tags(step).requires_fit
    except (AttributeError, TypeError, NotImplementedError):
        return False
