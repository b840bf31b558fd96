"""Budgets on their way through scikit-learn, which cuts by rows what has as many entries as X."""

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score

import privypurse as pp
from privypurse.sklearn import PrivateClassifier

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.PrivyPurseWarning")
IDS = np.array([f"C{k}" for k in range(48)])
GRANTED = np.where(np.arange(48) % 3 == 0, 0.5, 5.0)


@pytest.fixture
def seeded(classifier):
    return classifier.set_params(epsilon=None, random_state=0, batch_size=12, noise_multiplier=1.0)


@pytest.mark.parametrize("people", [48, 60])
@pytest.mark.parametrize("order", [np.arange(48), np.random.default_rng(1).permutation(48)], ids=["same", "other"])
def test_budgets_by_id_are_handed_on_whole(table, seeded, people, order, monkeypatch):
    """So everybody keeps their own ε in each fold, in whatever order the consents are."""
    X, y, _ = table
    fitted, fit = [], PrivateClassifier.fit
    monkeypatch.setattr(PrivateClassifier, "fit", lambda *given, **more: fitted.append(fit(*given, **more)))
    others = [f"else{k}" for k in range(48, people)]
    budgets = pp.Budgets(np.append(GRANTED[order], np.ones(len(others))), person=[*IDS[order], *others])
    cross_val_score(seeded, X, y, cv=3, params={"budgets": budgets, "ids": IDS}, error_score="raise")
    granted = dict(zip(budgets.person.tolist(), budgets.epsilon, strict=True))
    assert len(fitted) == 3
    for each in fitted:
        assert all(most <= granted[who] for who, most in each.spent_.items())
        assert max(each.spent_.values()) > 2.5


def test_also_by_a_search_and_its_refit(table, seeded):
    X, y, _ = table
    search = GridSearchCV(seeded, {"clip_norm": [1.0]}, cv=2, error_score="raise")
    search.fit(X, y, budgets=pp.Budgets(GRANTED, person=IDS), ids=IDS)
    spent = search.best_estimator_.spent_
    assert all(spent[who] <= most for who, most in zip(IDS, GRANTED, strict=True))


def test_budgets_of_rows_that_were_cut_are_refused(table, seeded):
    """By place each ε would go to somebody else; an array is cut as X is."""
    X, y, _ = table
    with pytest.raises(pp.InvalidInput, match="without ids, or several"):
        cross_val_score(seeded, X, y, cv=2, params={"budgets": pp.Budgets(GRANTED)}, error_score="raise")
    order = np.random.default_rng(1).permutation(48)
    with pytest.raises(pp.InvalidInput, match="without ids, or several"):
        seeded.fit(X[order], y[order], budgets=np.array(pp.Budgets(GRANTED))[order])
    halves = [np.array(pp.Budgets(GRANTED[half], person=IDS[half])) for half in (slice(24), slice(24, 48))]
    with pytest.raises(pp.InvalidInput, match="without ids, or several"):
        seeded.fit(X, y, budgets=np.concatenate(halves), ids=IDS)
    assert np.isfinite(cross_val_score(seeded, X, y, cv=2, params={"budgets": GRANTED, "ids": IDS})).all()
