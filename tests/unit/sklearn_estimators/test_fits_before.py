"""A second fit on the same people is warned of, with what it adds up to."""

import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures

import privypurse as pp
from privypurse.sklearn import PublicEncoder, SpentBefore, fits_before

KEYS = np.arange(4, dtype=np.uint64)


def spent_before(caught):
    return [str(each.message) for each in caught if each.category is SpentBefore]


def keys_of(rows, columns=None):
    cells = fits_before.mixed_cells(rows)
    return fits_before.row_keys(cells, range(cells.shape[1]) if columns is None else columns)


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
    keys = keys_of(rows)
    assert np.unique(keys).size == np.unique(rows, axis=0).shape[0]
    assert np.array_equal(keys_of(rows[::-1]), keys[::-1])
    assert keys_of(np.array([[0.0, 1.0]])) == keys_of(np.array([[-0.0, 1.0]]))
    assert keys_of(np.array([[1.0, 2.0]])) != keys_of(np.array([[2.0, 1.0]]))
    texts = rows.astype(int).astype(str).astype(object)
    texts[:, 3] = [f"plan {cell}" for cell in texts[:, 3]]
    assert np.unique(keys_of(texts)).size == np.unique(keys).size
    assert not np.isin(keys_of(texts), keys).any()


def test_a_row_is_known_by_its_cells_whatever_their_type():
    rows = np.array([[18.0, 1.0, np.nan], [2.5, 0.0, -1.0]])
    others = (
        rows.astype(np.float32),
        rows.tolist(),
        [["18", True, None], ["2.50 ", False, -1]],
        [[18, True, pd.NA], [2.5, np.False_, Decimal(-1)]],
        pd.DataFrame(rows, columns=list("abc")).astype({"b": "int8", "c": "Int64"}),
    )
    for other in others:
        assert np.array_equal(keys_of(np.asarray(other)), keys_of(rows))
    assert np.array_equal(keys_of(rows[:, [2, 0, 1]], "cab"), keys_of(rows, "abc"))
    assert not np.isin(keys_of(rows, "abd"), keys_of(rows, "abc")).any()


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


PLANS = ["a", "b"]


def mixed(rows):
    """Numbers and a text."""
    return pd.DataFrame({"age": 50 + 30 * rows[:, 0], "plan": np.where(rows[:, 1] > 0, *PLANS)})


def fits_counted(fits):
    """How many fits of one person are said, by the last warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for estimator, *given in fits:
            clone(estimator).fit(*given)
    said = spent_before(caught)
    assert len(said) == len(fits) - 1
    return said[-1]


def test_rows_are_known_by_their_cells_whatever_is_made_of_them(table, classifier):
    """Other ranges, lists, types of numbers and orders of columns are the same people's."""
    X, y, _ = table
    frame = mixed(X)
    given = {"bounds": {"age": (0, 100)}, "categories": {"plan": PLANS}}
    others = (
        ({}, frame.astype({"age": np.float32})),
        ({"bounds": {"age": (0, 90)}}, frame.astype({"plan": "category"})),
        ({"categories": {"plan": ["b", "c"]}}, frame[["plan", "age"]]),
        ({"categories": {1: PLANS}, "bounds": None}, frame.to_numpy()),
    )
    fits = [(classifier.set_params(**given), frame, y)]
    fits += [(clone(classifier).set_params(**(given | changed)), rows, y) for changed, rows in others]
    assert "5 fits cost" in fits_counted(fits)


def test_rows_before_a_pipelines_steps_are_known(table, classifier, regressor):
    X, y, numbers = table
    frame = mixed(X)

    def encoder(top, out="default"):
        return PublicEncoder({"age": (0, top)}, {"plan": PLANS}).set_output(transform=out)

    nested = make_pipeline(FunctionTransformer(), make_pipeline(encoder(91), PolynomialFeatures(2), classifier))
    fits = [
        (make_pipeline(encoder(90), classifier), frame, y),
        (nested, frame, y),
        (make_pipeline(encoder(92, "pandas"), classifier), frame, y),
        (clone(classifier).set_params(bounds={"age": (0, 93)}, categories={"plan": PLANS}), frame, y),
        (make_pipeline(encoder(94), MultiOutputRegressor(regressor)), frame, numbers[:, None]),
    ]
    assert "5 fits cost" in fits_counted(fits)


def test_rows_that_a_search_in_a_pipeline_cuts_are_known_as_it_gives_them(table, classifier):
    """It gives some of those of the pipeline, and nobody can say which."""
    X, y, _ = table
    search = GridSearchCV(classifier, {"clip_norm": [1.0, 2.0]}, cv=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_pipeline(FunctionTransformer(lambda rows: 2 * rows), search).fit(X, y)
    assert "3 fits cost" in spent_before(caught)[-1]


def test_a_pipeline_whose_step_takes_rows_away_counts_those_that_are_left(table, classifier):
    X, y, _ = table

    class Halves(FunctionTransformer):
        def fit_transform(self, X, y=None, **more):
            return np.asarray(X)[:24]

    class Fewer(type(classifier)):
        __init__ = type(classifier).__init__

        def fit(self, X, y, **more):
            return super().fit(X, y[:24], **more)

    fewer = Fewer(**classifier.get_params())
    assert "2 fits cost" in fits_counted([(classifier, X[:24], y[:24]), (make_pipeline(Halves(), fewer), X, y)])


@pytest.mark.filterwarnings("ignore:seed=:privypurse.PrivyPurseWarning")
def test_seeded_fits_take_nothing_from_anybody(table, classifier):
    X, y, _ = table
    for _ in range(2):
        classifier.set_params(random_state=0).fit(X, y)  # a warning would be an error
