"""Columns → numbers by public ranges and categories: the step that may stand before a private estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from privypurse.arrays import AnyArray, FloatArray
from privypurse.datasets.encoding import Categories, Range
from privypurse.errors import InvalidInput
from privypurse.sklearn.inputs import as_numbers, checked


class PublicEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Numbers to [-1, 1] by public ranges, categories to columns of 0 and 1 by public lists. It learns nothing.

    ``bounds`` are the ends of number columns: a pair (low, high) for all, one pair for each in their order, or a
    mapping from columns, by name or place. What lies beyond an end counts as that end. A column without bounds stays
    as it is. ``categories`` maps columns to their values; a value that is not listed is "other". What is missing is
    the middle of the range, 0 where there are no bounds, a category of its own; with ``add_indicator`` a column of
    its own says where a number with bounds was missing.

    Guarantee: each row of `transform` follows from that row and the arguments, as they were at `fit`, alone. So
    ranges and lists must be public: one that was read off the data tells about the people in it.
    """

    encodings_: dict[int, Range | Categories]

    def __init__(self, bounds: Any = None, categories: Any = None, add_indicator: bool = False) -> None:
        self.bounds = bounds
        self.categories = categories
        self.add_indicator = add_indicator

    def fit(self, X: Any, y: Any = None) -> Self:
        """Notes how many columns there are, and their names; the arguments have to fit them."""
        checked(self, X, categories=self.categories)
        return self._settled()

    def transform(self, X: Any) -> FloatArray:
        """float64[n, d]."""
        check_is_fitted(self, "encodings_")
        return self._encoded(checked(self, X, categories=self._listed, reset=False))

    def get_feature_names_out(self, input_features: Any = None) -> AnyArray:
        """A name for each column of `transform`."""
        check_is_fitted(self, "encodings_")
        names = self._names() if input_features is None else [str(name) for name in input_features]
        if len(names) != self.n_features_in_:
            raise InvalidInput(f"input_features has {len(names)} names; there are {self.n_features_in_} columns")
        return np.array(
            [each for place, name in enumerate(names) for each in _names_of(self.encodings_.get(place), name)],
            dtype=object,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = tags.input_tags.categorical = bool(self.categories)
        tags.target_tags.required = False
        return tags

    def _names(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        return (
            [f"x{place}" for place in range(self.n_features_in_)] if names is None else [str(name) for name in names]
        )

    def _settled(self) -> Self:
        """With the arguments as they are now: later changes of these do not count before the next `fit`."""
        self.encodings_ = self._encodings()
        return self

    @property
    def _listed(self) -> dict[int, Categories]:
        """The columns of categories, by place, as of the last `fit`."""
        return {place: how for place, how in self.encodings_.items() if isinstance(how, Categories)}

    def _encodings(self) -> dict[int, Range | Categories]:
        """For each column, by its place, how it is encoded; none for one that stays as it is."""
        named = list(getattr(self, "feature_names_in_", ()))
        listed = self._by_place(self.categories, named, "categories")
        found: dict[int, Range | Categories] = {place: Categories(_values(given)) for place, given in listed.items()}
        numeric = [place for place in range(self.n_features_in_) if place not in listed]
        for place, (low, high) in self._pairs(numeric, named).items():
            if place in listed:
                raise InvalidInput(f"column {place} is both in bounds and in categories; leave it in one of them")
            found[place] = Range(low, high, indicator=bool(self.add_indicator))
        return found

    def _pairs(self, numeric: list[int], named: list[Any]) -> dict[int, tuple[float, float]]:
        if self.bounds is None:
            return {}
        if isinstance(self.bounds, Mapping):
            return {place: _pair(ends) for place, ends in self._by_place(self.bounds, named, "bounds").items()}
        shape = np.shape(self.bounds)
        if shape == (2,):
            return dict.fromkeys(numeric, _pair(self.bounds))
        if shape != (len(numeric), 2):
            raise InvalidInput(
                f"bounds has shape {shape}; give a pair (low, high) for all, or one for each of the {len(numeric)} "
                "columns of numbers"
            )
        return dict(zip(numeric, map(_pair, self.bounds), strict=True))

    def _by_place(self, given: Any, named: list[Any], what: str) -> dict[int, Any]:
        """A mapping from columns as one from their places."""
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            raise InvalidInput(f"{what} is {given!r}; give a mapping from columns, by name or place")
        found = {}
        for column, each in given.items():
            if column in named:
                found[named.index(column)] = each
            elif not isinstance(column, str) and column in range(self.n_features_in_):
                found[int(column)] = each
            else:
                raise InvalidInput(f"{what} names the column {column!r}, which X does not have")
        return found

    def _encoded(self, cells: AnyArray) -> FloatArray:
        """float64[n, d], column after column."""
        names = getattr(self, "feature_names_in_", [None] * cells.shape[1])
        parts = [self._column(cells[:, place], self.encodings_.get(place), name) for place, name in enumerate(names)]
        return np.concatenate(parts, axis=1)

    def _column(self, cells: AnyArray, how: Range | Categories | None, name: str | None) -> FloatArray:
        if isinstance(how, Categories):
            return how.encode(cells).astype(np.float64)
        numbers = as_numbers(cells, name)
        if how is not None:
            return how.encode(numbers).astype(np.float64)
        return np.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0)[:, None]


def _pair(ends: Any) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in ends)
    except (TypeError, ValueError):
        raise InvalidInput(f"bounds hold {ends!r}; give pairs of numbers (low, high)") from None
    return low, high


def _values(given: Any) -> tuple[Any, ...]:
    """Listed values as they are: `Categories` makes text of them, as of cells."""
    # A set comes out of a pickle in another order, and columns follow it.
    if not isinstance(given, str | bytes | set | frozenset):
        try:
            return tuple(given)
        except TypeError:
            pass
    raise InvalidInput(f'categories hold {given!r}; give a list of values for each column, as in ["a", "b"]')


def _names_of(how: Range | Categories | None, column: str) -> list[str]:
    return [column] if how is None else how.names(column)
