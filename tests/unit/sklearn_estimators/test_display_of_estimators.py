"""What a notebook shows of a fitted estimator: a notebook is handed on, so nobody's id and ε (rule 6)."""

import pytest
from sklearn.base import BaseEstimator
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from privypurse.plans import Plan
from privypurse.sklearn import PublicEncoder

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.PrivyPurseWarning")
IDS = [f"Zyklop{k}" for k in range(48)]


def wrapped(classifier):
    classifier.set_params(random_state=0)
    return {
        "alone": (classifier, "ids"),
        "pipeline": (make_pipeline(PublicEncoder(), classifier), "privateclassifier__ids"),
        "pipelines": (make_pipeline(make_pipeline(PublicEncoder(), classifier)), "pipeline__privateclassifier__ids"),
        "search": (GridSearchCV(classifier, {"clip_norm": [1.0]}, cv=2), "ids"),
    }


@pytest.mark.parametrize("case", ["alone", "pipeline", "pipelines", "search"])
def test_no_id_is_shown_and_nobodys_spending_computed(table, classifier, case, monkeypatch):
    X, y, _ = table
    estimator, ids = wrapped(classifier)[case]
    estimator.fit(X, y, **{ids: IDS})
    monkeypatch.setattr(Plan, "spent", lambda *_, **__: pytest.fail("everybody's ε was computed to show a model"))
    shown = estimator._repr_html_() + str(estimator._repr_mimebundle_())
    assert "clip_norm" in shown
    assert "Zyklop" not in shown
    assert "spent_</" not in shown
    assert "plan_</" not in shown


def test_nor_of_a_regressor_inside_another(table, regressor):
    X, _, y = table
    regressor.set_params(random_state=0)
    assert "Zyklop" not in TransformedTargetRegressor(regressor).fit(X, y, ids=IDS)._repr_html_()


@pytest.mark.skipif(not hasattr(BaseEstimator, "_get_fitted_attr_html"), reason="scikit-learn shows no attributes")
def test_what_may_be_told_is_shown_and_the_estimator_keeps_its_plan(table, classifier):
    X, y, _ = table
    assert "classes_" in classifier.fit(X, y, ids=IDS)._repr_html_()
    assert set(classifier.spent_) == set(IDS)


def test_where_scikit_learn_shows_no_attributes_there_are_none(table, classifier, monkeypatch):
    """As before 1.9."""
    monkeypatch.delattr(BaseEstimator, "_get_fitted_attr_html", raising=False)
    X, y, _ = table
    assert len(classifier.fit(X, y, ids=IDS)._get_fitted_attr_html("")) == 0
    assert "Zyklop" not in classifier._repr_html_()
