"""A small table, estimators that train on it in a moment, and a process that has trained on nobody."""

import numpy as np
import pytest

from components import require

require("sklearn")

from privypurse.sklearn import PrivateClassifier, PrivateRegressor, fits_before  # noqa: E402

QUICK = {"steps": 3, "accountant": "rdp"}


@pytest.fixture(autouse=True)
def nobody_yet():
    fits_before.forget()
    yield
    fits_before.forget()


@pytest.fixture(scope="session")
def table():
    """X, labels and numbers of 48 people."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(48, 3))
    return X, np.where(X[:, 0] > 0, "yes", "no"), 10 * X[:, 0] + X[:, 1]


@pytest.fixture
def classifier():
    return PrivateClassifier(1.0, classes=["no", "yes"], **QUICK)


@pytest.fixture
def regressor():
    return PrivateRegressor(1.0, target_bounds=(-12, 12), **QUICK)
