"""A second fit on the same people is warned of, with what it adds up to."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import privypurse as pp
from privypurse.sklearn import SpentBefore, fits_before

KEYS = np.arange(4, dtype=np.uint64)


def spent_before(caught):
    return [str(each.message) for each in caught if each.category is SpentBefore]


def test_totals_add_up_by_person():
    totals = fits_before.Totals()
    assert totals.add(KEYS[:3], np.array([1.0, 2.0, 3.0]), np.full(3, 1e-5)) is None
    assert totals.add(KEYS[3:], np.array([9.0]), np.array([1e-5])) is None  # somebody else
    assert totals.add(KEYS[:2], np.array([0.5, 0.25]), np.full(2, 1e-6)).tolist() == pytest.approx([2.25, 1.1e-5, 2])
    again = totals.add(KEYS[[2, 2, 0]], np.array([1.0, 1.0, 7.0]), np.full(3, 1e-5))  # two rows of one person
    assert again.tolist() == pytest.approx([8.5, 2.1e-5, 3])
    assert dict(zip(totals.keys.tolist(), totals.spent[0].tolist(), strict=True)) == {0: 8.5, 1: 2.25, 2: 4.0, 3: 9.0}


def test_rows_are_told_apart():
    rows = np.random.default_rng(0).integers(0, 3, size=(2000, 12)).astype(float)
    keys = fits_before.row_keys(rows)
    assert np.unique(keys).size == np.unique(rows, axis=0).shape[0]
    assert np.array_equal(fits_before.row_keys(rows[::-1]), keys[::-1])
    assert fits_before.row_keys(np.array([[0.0, 1.0]])) == fits_before.row_keys(np.array([[-0.0, 1.0]]))
    assert fits_before.row_keys(np.array([[1.0, 2.0]])) != fits_before.row_keys(np.array([[2.0, 1.0]]))


def test_a_second_fit_says_what_was_spent_by_then(table, classifier):
    X, y, _ = table
    classifier.fit(X[:30], y[:30])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(classifier).fit(X[30:], y[30:])  # others
    with pytest.warns(SpentBefore, match=r"2 fits cost .* up to ε = 1\.[89]\d* at δ = 2e-05") as caught:
        clone(classifier).fit(X[20:25], y[20:25])
    assert "GridSearchCV" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_people_are_known_by_id_whatever_their_rows(table, classifier):
    X, y, _ = table
    classifier.fit(X[:24], y[:24], ids=range(24))
    with pytest.warns(SpentBefore, match="some of these people"):
        clone(classifier).fit(X[24:], y[24:], ids=[str(k) for k in range(23, 47)])


def test_rows_that_were_fitted_with_ids_are_known_without(table, classifier):
    X, y, _ = table
    classifier.fit(X[:24], y[:24], ids=range(24))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpentBefore)
        clone(classifier).fit(X[:24], y[:24], ids=range(100, 124))  # others, whose rows are the same
    with pytest.warns(SpentBefore, match="rows like some of these"):
        clone(classifier).fit(np.asarray(X[:24], dtype=np.float32), y[:24])


def test_a_search_spends_on_every_fit(table, classifier):
    X, y, _ = table
    classifier.set_params(epsilon=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        search = GridSearchCV(classifier, {"learning_rate": [0.1, 0.2]}, cv=2)
        search.fit(X, y, ids=np.arange(48), budgets=np.full(48, 1.0))
    said = spent_before(caught)
    assert len(said) == 3  # 2 folds of others each, again for the second candidate, and all once more
    assert "3 fits cost one of them up to ε = 2.9" in said[-1]
    assert search.best_estimator_.plan_.people == 48


def test_a_search_does_not_take_budgets_by_number_that_are_by_id(table, classifier):
    """It cuts a mapping from ids by numbers of rows, into a list: here of the next person's ε."""
    X, y, _ = table
    ids = (np.arange(48) + 1) % 48
    search = GridSearchCV(classifier.set_params(epsilon=None), {"learning_rate": [0.1]}, cv=2, error_score="raise")
    with pytest.raises(pp.InvalidInput, match="budgets is a list"):
        search.fit(X, y, ids=ids, budgets=dict.fromkeys(range(48), 1.0))


@pytest.mark.filterwarnings("ignore:seed=:privypurse.PrivyPurseWarning")
def test_seeded_fits_take_nothing_from_anybody(table, classifier):
    X, y, _ = table
    for _ in range(2):
        classifier.set_params(random_state=0).fit(X, y)  # a warning would be an error
