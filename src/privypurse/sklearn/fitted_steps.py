"""Whether a private estimator is the end of a pipeline, and which steps before it learned from the same people."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils import get_tags

from privypurse.sklearn.public_encoder import PublicEncoder
from privypurse.sklearn.said import FittedStep

_PUBLIC = (PublicEncoder, PolynomialFeatures)
"""Steps that follow from the number of columns alone."""


def warn_of_fitted_steps(estimator: Any) -> None:
    """Warn of each step that learns from data in a pipeline that fits this estimator now.

    A step tells nobody that it was fitted, so the pipeline is looked for among the callers. What was fitted and
    applied elsewhere, and what a function of a FunctionTransformer does, is not seen.
    """
    names = [name for pipeline in _pipelines_that_end_in(estimator) for name in _learning(pipeline.steps[:-1])]
    if names:
        warnings.warn(
            f"{', '.join(names)}: fitted on the same people before {type(estimator).__name__}, which tells about "
            "them what no budget pays for, so its promise is void. Use privypurse.sklearn.PublicEncoder, with public "
            "ranges and categories; or fit such steps on public data, and transform X by them before",
            FittedStep,
            stacklevel=4,
        )


def _pipelines_that_end_in(estimator: Any) -> Iterator[Pipeline]:
    """From the inside out; one pipeline may be the end of another."""
    frame, last = sys._getframe(1), estimator
    while frame is not None:
        caller = frame.f_locals.get("self") if frame.f_code.co_varnames[:1] == ("self",) else None
        if isinstance(caller, Pipeline) and caller.steps[-1][1] is last:
            yield caller
            last = caller
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
