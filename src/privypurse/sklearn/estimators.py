"""PrivateClassifier and PrivateRegressor: scikit-learn's estimators, trained by a plan that keeps everybody's ε."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets

from privypurse._validate import require_same_order
from privypurse.arrays import AnyArray, FloatArray
from privypurse.datasets.encoding import Range
from privypurse.errors import InvalidInput
from privypurse.sklearn import networks
from privypurse.sklearn.inputs import checked, targets
from privypurse.sklearn.private_estimator import PrivateEstimator
from privypurse.sklearn.said import LabelsNotPrivate

FROM_DATA = "from the data"
"""The word by which `PrivateClassifier` is allowed to read classes off the labels."""


class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """Logistic regression, or with ``hidden`` a network of fully connected layers, within everybody's own ε.

    Any other step that was fitted on the same people before (StandardScaler, SelectKBest, PCA, an imputer) voids the
    promise: use `PublicEncoder`, or the arguments ``bounds`` and ``categories``, which are the same thing. A step of
    a pipeline that learns from data is warned of by name (`FittedStep`); one that was applied elsewhere is not seen.
    What learns or chooses by the same people around it (GridSearchCV, CalibratedClassifierCV) does the same harm.

    Parameters
    ----------
    epsilon, delta
        Everybody's budget for one fit, where ``fit`` gets no ``budgets``. δ is also that of budgets given as numbers.
    classes
        The labels that there may be, public. "from the data" reads them off y: which labels occur is then NOT
        private, and warned of (`LabelsNotPrivate`).
    bounds, categories
        As of `PublicEncoder`. Without bounds numbers are taken as they are: bring them to about [-1, 1].
    hidden
        Widths of hidden layers, as in (64,).
    method, steps, epochs, people, batch_size, clip_norm, noise_multiplier, at_most, accountant
        As of `pp.plan`. Steps and batch that are not given follow by the rule of `pp.suggest` from the grants and the
        network's size. With ``noise_multiplier`` presence is protected too: ``batch_size`` has to be given, and
        without ``steps`` there are 200.
    learning_rate
        Of Adam. By default SGD with momentum 0.9, whose step follows from the plan's noise as in `pp.suggest`.
    max_records_per_person
        How many rows of a person take part in a step, where there are ids.
    ledger, purpose
        The ledger that charges every fit, `pp.Ledger.open(url)`, and a word for it. Clones share it, pickles lose it.
        Without one every further fit on the same people in this process is warned of (`SpentBefore`).
    random_state
        None draws noise and coins from a cryptographic generator. Anything else makes the fit repeatable, and
        therefore NOT private: for tests.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, encoder_, network_
        May be published: the network is what was paid for, and ``encoder_`` holds ``bounds`` and ``categories`` as
        they were at ``fit``. Arguments that are changed later do not count before the next fit.
    plan_, spent_
        What was planned, and by id what the fit cost at most. Sensitive, and in no pickle.

    Guarantee: that of `pp.train`; it is the same code. What `score` says of the people in training is sensitive, and
    nobody paid for it.
    """

    classes_: AnyArray

    def __init__(
        self,
        epsilon: Any = None,
        *,
        delta: Any = 1e-5,
        classes: Any = None,
        bounds: Any = None,
        categories: Any = None,
        hidden: Any = (),
        method: Any = "sample",
        steps: Any = None,
        epochs: Any = None,
        people: Any = None,
        batch_size: Any = None,
        clip_norm: Any = 1.0,
        noise_multiplier: Any = None,
        at_most: Any = None,
        accountant: Any = "pld",
        learning_rate: Any = None,
        max_records_per_person: Any = None,
        ledger: Any = None,
        purpose: Any = "",
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.bounds = bounds
        self.categories = categories
        self.hidden = hidden
        self.method = method
        self.steps = steps
        self.epochs = epochs
        self.people = people
        self.batch_size = batch_size
        self.clip_norm = clip_norm
        self.noise_multiplier = noise_multiplier
        self.at_most = at_most
        self.accountant = accountant
        self.learning_rate = learning_rate
        self.max_records_per_person = max_records_per_person
        self.ledger = ledger
        self.purpose = purpose
        self.random_state = random_state

    def fit(self, X: Any, y: Any, budgets: Any = None, ids: Any = None, **more: Any) -> Self:
        """Spend everybody's ε on a model, once more at each call.

        ``budgets`` are `pp.Budgets`, made with ``person=`` where ``ids`` are given, or an array of one ε for each
        row; without them everybody has ``epsilon``. ``ids`` holds the id of each row's owner: all rows of a person
        are one unit. Without ids each row is a person, also one that is there several times.
        """
        self._begin(more)
        require_same_order("X", X, budgets=budgets, ids=ids)
        cells, labels = checked(self, X, y, categories=self.categories)
        check_classification_targets(labels)
        labels = _plain(labels)
        self.classes_ = self._known(labels)
        codes = self._codes(labels)
        if self.classes_.size == 2:
            self._fit(cells, torch.as_tensor(codes, dtype=torch.float32), 1, networks.two_classes, budgets, ids)
        else:
            target = torch.as_tensor(codes)
            self._fit(cells, target, self.classes_.size, networks.several_classes, budgets, ids)
        return self

    def decision_function(self, X: Any) -> FloatArray:
        """The log-odds of the second of two classes, or a score for each of several."""
        outputs = self._outputs(X)
        return outputs[:, 0] if self.classes_.size == 2 else outputs

    def predict_proba(self, X: Any) -> FloatArray:
        """For each record the probability of each class, in the order of ``classes_``."""
        outputs = self._outputs(X)
        if self.classes_.size == 2:
            outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=1)
        weights = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> AnyArray:
        """For each record the likeliest class."""
        outputs = self._outputs(X)
        codes = (outputs[:, 0] > 0).astype(np.int64) if self.classes_.size == 2 else outputs.argmax(axis=1)
        return np.asarray(self.classes_[codes])

    def _known(self, labels: AnyArray) -> AnyArray:
        """The classes, in order: as given, or where that is asked for as found."""
        if self.classes is None:
            raise InvalidInput(
                "classes is not given, and is not read off y by itself: which labels occur tells about people. Give "
                f'classes=[…], all that there may be; or classes="{FROM_DATA}", which is not private for the labels'
            )
        if isinstance(self.classes, str):
            if self.classes != FROM_DATA:
                raise InvalidInput(f'classes is {self.classes!r}; give a list of labels, or "{FROM_DATA}"')
            warnings.warn(
                f'classes="{FROM_DATA}": which labels occur is read off the data, and not private. Give classes=[…]',
                LabelsNotPrivate,
                stacklevel=3,
            )
            found = np.unique(labels)
        else:
            found = np.unique(_plain(np.asarray(self.classes)))
            if found.size != np.size(self.classes):
                raise InvalidInput("classes holds a label twice; list each once")
        if found.size < 2:
            raise InvalidInput(f"classes holds {found.size} class; a classifier needs at least two")
        return found

    def _codes(self, labels: AnyArray) -> AnyArray:
        """For each label its place among the classes. An error names none: it would be somebody's."""
        alike = (labels.dtype.kind in "US") == (self.classes_.dtype.kind in "US")
        if not alike or not np.isin(labels, self.classes_).all():
            raise InvalidInput(
                "y holds a label that is not among classes; list all that there may be, of the same kind (1 is not "
                '"1"), or leave such rows out'
            )
        return np.searchsorted(self.classes_, labels).astype(np.int64)


def _plain(labels: AnyArray) -> AnyArray:
    """Objects as what they all are: text or numbers."""
    return np.array(labels.tolist()) if labels.dtype == object else labels


class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """Linear regression, or with ``hidden`` a network of fully connected layers, within everybody's own ε.

    All that `PrivateClassifier` says holds here too, with ``target_bounds`` in place of ``classes``: the public range
    (low, high) of what is predicted. Targets beyond an end count as that end, and predictions lie between them; the
    range of the last fit is ``target_range_``. The loss is the squared error on the range's scale. `score` is R².
    """

    def __init__(
        self,
        epsilon: Any = None,
        *,
        delta: Any = 1e-5,
        target_bounds: Any = None,
        bounds: Any = None,
        categories: Any = None,
        hidden: Any = (),
        method: Any = "sample",
        steps: Any = None,
        epochs: Any = None,
        people: Any = None,
        batch_size: Any = None,
        clip_norm: Any = 1.0,
        noise_multiplier: Any = None,
        at_most: Any = None,
        accountant: Any = "pld",
        learning_rate: Any = None,
        max_records_per_person: Any = None,
        ledger: Any = None,
        purpose: Any = "",
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.target_bounds = target_bounds
        self.bounds = bounds
        self.categories = categories
        self.hidden = hidden
        self.method = method
        self.steps = steps
        self.epochs = epochs
        self.people = people
        self.batch_size = batch_size
        self.clip_norm = clip_norm
        self.noise_multiplier = noise_multiplier
        self.at_most = at_most
        self.accountant = accountant
        self.learning_rate = learning_rate
        self.max_records_per_person = max_records_per_person
        self.ledger = ledger
        self.purpose = purpose
        self.random_state = random_state

    def fit(self, X: Any, y: Any, budgets: Any = None, ids: Any = None, **more: Any) -> Self:
        """As that of `PrivateClassifier`, with numbers for y."""
        self._begin(more)
        require_same_order("X", X, budgets=budgets, ids=ids)
        self.target_range_ = ends = self._range()
        cells, numbers = checked(self, X, y, categories=self.categories)
        target = torch.as_tensor(ends.scaled(targets(numbers)).astype(np.float32))
        self._fit(cells, target, 1, networks.squared_error, budgets, ids)
        return self

    def predict(self, X: Any) -> FloatArray:
        """For each record a number of the range."""
        outputs = self._outputs(X)
        return self.target_range_.unscaled(outputs[:, 0])

    def _range(self) -> Range:
        if self.target_bounds is None:
            raise InvalidInput(
                "target_bounds is not given, and is not read off y, whose smallest and largest value are somebody's. "
                "Give target_bounds=(low, high), a public range"
            )
        if np.shape(self.target_bounds) != (2,):
            raise InvalidInput(f"target_bounds is {self.target_bounds!r}; give a pair (low, high)")
        low, high = map(float, self.target_bounds)
        return Range(low, high)
