"""A step that learned from the same people before a private estimator is warned of by name."""

import warnings

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, Normalizer, PolynomialFeatures, StandardScaler

from privypurse.sklearn import FittedStep, PublicEncoder

pytestmark = pytest.mark.filterwarnings("ignore:seed=:privypurse.PrivyPurseWarning")


@pytest.fixture
def seeded(classifier):
    return classifier.set_params(random_state=0, steps=1)


SCALER = ("s", StandardScaler())
LEARNING = {
    "scaler": (SCALER, ["StandardScaler (step 's')"]),
    "selection": (("best", SelectKBest(k=2)), ["SelectKBest (step 'best')"]),
    "pipeline": (("all", Pipeline([("p", PublicEncoder()), SCALER])), ["StandardScaler (step 's')"]),
    "columns": (("each", ColumnTransformer([(*SCALER, [0])])), ["StandardScaler (step 's')"]),
    "union": (("both", FeatureUnion([("p", PublicEncoder()), SCALER])), ["StandardScaler (step 's')"]),
}


@pytest.mark.parametrize("case", LEARNING)
def test_steps_that_learn_are_named(case, table, seeded):
    X, y, _ = table
    step, names = LEARNING[case]
    with pytest.warns(FittedStep, match="void") as caught:
        Pipeline([("first", MinMaxScaler()), step, ("model", seeded)]).fit(X, y)
    (said,) = [str(each.message) for each in caught if each.category is FittedStep]
    assert said.startswith(", ".join(["MinMaxScaler (step 'first')", *names]) + ": ")


def test_also_when_a_pipeline_ends_in_another(table, seeded):
    X, y, _ = table
    whole = make_pipeline(StandardScaler(), make_pipeline(PublicEncoder(), seeded))
    with pytest.warns(FittedStep, match="StandardScaler"):
        whole.fit(X, y)


def test_what_learns_around_it_is_named(table, seeded, regressor):
    """A search chooses by its members' labels, a calibration is fitted to them, a target's scale is everybody's."""
    X, y, numbers = table
    search = GridSearchCV(make_pipeline(StandardScaler(), seeded), {"privateclassifier__clip_norm": [1.0]}, cv=2)
    with pytest.warns(FittedStep, match=r"StandardScaler \(step 'standardscaler'\).*; GridSearchCV"):
        search.fit(X, y)
    with pytest.warns(FittedStep, match="CalibratedClassifierCV: learns"):
        CalibratedClassifierCV(seeded, cv=2).fit(X, y)
    regressor.set_params(random_state=0, steps=1)
    with pytest.warns(FittedStep, match="TransformedTargetRegressor: learns"):
        TransformedTargetRegressor(regressor, transformer=StandardScaler()).fit(X, numbers)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FittedStep)
        MultiOutputRegressor(regressor).fit(X, numbers[:, None])


def test_public_steps_are_not_warned_of(table, seeded):
    X, y, _ = table
    steps = [
        PublicEncoder((-1, 1)),
        FunctionTransformer(np.tanh),
        Normalizer(),
        PolynomialFeatures(2),
        FrozenEstimator(StandardScaler().fit(PolynomialFeatures(2).fit_transform(np.eye(3)))),  # of public data
        "passthrough",
        ColumnTransformer([("p", PublicEncoder(), [0, 1])], remainder="drop"),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FittedStep)
        make_pipeline(*steps, seeded).fit(X, y, privateclassifier__ids=np.arange(48))
        seeded.fit(X, y)
    assert seeded.predict(X).shape == (48,)


def test_another_pipeline_on_the_way_is_not_mistaken(table, seeded):
    """One in which the estimator is fitted before the step that learns."""
    X, y, _ = table

    class Wraps(FunctionTransformer):
        def fit(self, X, y=None):
            seeded.fit(X, y)
            return super().fit(X, y)

    with warnings.catch_warnings():
        warnings.simplefilter("error", FittedStep)
        Pipeline([("w", Wraps()), SCALER]).fit(X, y)
