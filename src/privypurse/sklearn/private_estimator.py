"""What private estimators share: from X and budgets to a plan, a network that is trained by it, and its outputs."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch.utils.data import TensorDataset

from privypurse._validate import is_integer, real
from privypurse.arrays import AnyArray, FloatArray
from privypurse.assignment import plan
from privypurse.assignment.hyperparameters import MOMENTUM, learning_rate, sizes
from privypurse.budgets import Budgets
from privypurse.errors import InvalidInput, PrivyPurseWarning
from privypurse.plans import Plan
from privypurse.sklearn import fits_before
from privypurse.sklearn.budgets_of_rows import budgets_of_rows
from privypurse.sklearn.fitted_steps import rows_as_given, warn_of_fitted_steps
from privypurse.sklearn.inputs import checked
from privypurse.sklearn.networks import network, weights
from privypurse.sklearn.public_encoder import PublicEncoder
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.loop import train

STEPS = 200
"""Where presence is protected: a number that follows from nobody."""
_LEFT_BEHIND = "left behind when this estimator was pickled or copied"


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of `PrivateClassifier` and `PrivateRegressor`, which say what the arguments are."""

    epsilon: Any
    delta: Any
    hidden: Any
    method: Any
    steps: Any
    epochs: Any
    people: Any
    batch_size: Any
    noise_multiplier: Any
    clip_norm: Any
    learning_rate: Any
    max_records_per_person: Any
    at_most: Any
    accountant: Any
    ledger: Any
    purpose: Any
    bounds: Any
    categories: Any
    random_state: Any
    plan_: Plan
    encoder_: PublicEncoder
    network_: torch.nn.Module

    @property
    def spent_(self) -> dict[Any, float]:
        """By id, or by row where there are no ids: the ε that this fit is certified to cost at most. Sensitive."""
        if not hasattr(self, "plan_"):
            raise AttributeError("spent_ is there after fit; it and plan_ are sensitive, and stay out of pickles")
        plan = self.plan_
        ids = range(plan.records) if plan.person is None else np.asarray(plan.person).tolist()
        return dict(zip(ids, plan.spent().tolist(), strict=True))

    def __getstate__(self) -> dict[str, Any]:
        """A pickle is made to be handed on: plan and people stay out of it. So does the ledger, and fit then asks."""
        state = {name: value for name, value in super().__getstate__().items() if name != "plan_"}
        if state.get("ledger") is not None:
            state["ledger"] = _LEFT_BEHIND
        return state

    def _get_fitted_attr_html(self, *given: Any, **named: Any) -> Any:
        """Fitted attributes, as a notebook shows them (scikit-learn 1.9): those that stay in a pickle.

        A notebook is handed on too. Read off a copy without a plan, so that ``spent_`` is not even computed (rule 6).
        """
        table = getattr(super(PrivateEstimator, copy.copy(self)), "_get_fitted_attr_html", None)
        return {} if table is None else table(*given, **named)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = tags.input_tags.categorical = bool(self.categories)
        return tags

    def _features(self, X: Any) -> FloatArray:
        """X as the network takes it, once fitted."""
        check_is_fitted(self, "network_")
        return self.encoder_._encoded(checked(self, X, categories=self.encoder_._listed, reset=False))

    def _encoder(self) -> PublicEncoder:
        """By the arguments as they are now, which the caller may change later."""
        made = PublicEncoder(copy.deepcopy(self.bounds), copy.deepcopy(self.categories))
        made.n_features_in_ = self.n_features_in_
        if hasattr(self, "feature_names_in_"):
            made.feature_names_in_ = self.feature_names_in_
        return made._settled()

    def _outputs(self, X: Any) -> FloatArray:
        """float64[n, outputs]."""
        inputs = torch.as_tensor(self._features(X))
        with torch.no_grad():
            return np.asarray(self.network_(inputs).numpy())

    def _begin(self, more: dict[str, Any]) -> None:
        """Forget an earlier fit, of other classes or columns; raise for what other estimators' fit takes."""
        for name in ("network_", "plan_"):
            self.__dict__.pop(name, None)
        if more.pop("sample_weight", None) is not None:
            raise InvalidInput(
                "sample_weight is given, which a private fit does not take: how much a person counts is what their "
                "budget decides; give budgets="
            )
        if more:
            raise TypeError(f"fit() got an unexpected keyword argument {min(more)!r}")

    def _fit(self, cells: AnyArray, target: torch.Tensor, outputs: int, loss: Loss, budgets: Any, ids: Any) -> None:
        """Plan, count or charge, train: ``cells`` are checked, ``target`` is a number or a class for each row."""
        self.encoder_ = self._encoder()
        features = self.encoder_._encoded(cells)
        purses = budgets_of_rows(budgets, ids, len(features), self.epsilon, self.delta)
        seed = self._seed()
        warn_of_fitted_steps(self)
        net = network(features.shape[1], self.hidden, outputs, seed)
        made = self._plan(purses, weights(net))
        optimizer = self._optimizer(net, made)
        self.plan_ = made.for_records(ids)
        if self.ledger is None and seed is None:
            fits_before.count(self.plan_, *rows_as_given(self, cells), ids, stacklevel=4)
        train(
            net,
            optimizer,
            TensorDataset(_finite(features), target),
            made,
            loss,
            person=ids,
            max_records_per_person=self.max_records_per_person,
            ledger=self.ledger,
            purpose=self.purpose,
            seed=seed,
        )
        self.network_ = net.double().eval()

    def _plan(self, budgets: Budgets, count: int) -> Plan:
        """By the arguments. What is not given follows by the rule of `pp.suggest` from the grants, or from nothing.

        From the grants only where noise is solved from them too, so that the plan promises data and no more.
        """
        steps, batch_size = self.steps, self.batch_size
        if self.noise_multiplier is not None:
            if batch_size is None:
                raise InvalidInput(
                    f"noise_multiplier is {self.noise_multiplier!r}, so that people's presence is protected, and "
                    "batch_size is not given: by default it follows from how many there are. Give batch_size="
                )
            steps = STEPS if steps is None and self.epochs is None else steps
        elif batch_size is None or (steps is None and self.epochs is None):
            method = self.method if isinstance(self.method, str) else self.method.name
            cap = None if self.at_most is None else real(self.at_most, "at_most", above=0, hint="an ε")
            found = sizes(budgets.levels(cap)[0], method, count, steps, batch_size)
            batch_size, steps = found.batch_size, found.steps if self.epochs is None else None
        made = plan(
            budgets,
            self.method,
            steps=steps,
            epochs=self.epochs,
            people=self.people,
            batch_size=batch_size,
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            ledger=self.ledger,
            at_most=self.at_most,
            accountant=self.accountant,
        )
        if self.ledger is not None and self.at_most is None and self.noise_multiplier is None:
            warnings.warn(
                "ledger= is given without at_most=: this fit takes all that public balances have left, and no other "
                "fit, fold or question can follow it; give at_most=, the ε that it may cost",
                PrivyPurseWarning,
                stacklevel=3,
            )
        return made

    def _optimizer(self, net: torch.nn.Module, made: Plan) -> torch.optim.Optimizer:
        """Adam at a given learning rate; by default SGD whose step follows from the plan's public constants."""
        if self.learning_rate is not None:
            return torch.optim.Adam(net.parameters(), lr=real(self.learning_rate, "learning_rate", above=0))
        rate = learning_rate(made.shape, weights(net))
        return torch.optim.SGD(net.parameters(), lr=rate, momentum=MOMENTUM)

    def _seed(self) -> int | None:
        """None for a private fit."""
        given = self.random_state
        if given is None:
            return None
        if isinstance(given, np.random.RandomState):
            return int(given.randint(2**31 - 1))
        if not is_integer(given):
            raise InvalidInput(f"random_state is {given!r}; give None, which alone is private, or a whole number")
        return int(given)


def _finite(features: FloatArray) -> torch.Tensor:
    """In float32, as networks are trained: what is too large for it is the largest that it holds."""
    most = float(np.finfo(np.float32).max)
    return torch.as_tensor(np.clip(features, -most, most).astype(np.float32))
