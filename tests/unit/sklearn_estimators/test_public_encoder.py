"""PublicEncoder: rows by public constants alone."""

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import MinMaxScaler

import privypurse as pp
from privypurse.sklearn import PublicEncoder

FRAME = pd.DataFrame({"age": [18, 54, 90, 200, np.nan], "town": ["Ulm", "Bonn", "Rome", None, "Ulm"]})


def test_ranges_and_lists():
    made = PublicEncoder(bounds={"age": (18, 90)}, categories={"town": ["Ulm", "Bonn"]}, add_indicator=True)
    found = made.fit_transform(FRAME)
    assert made.get_feature_names_out().tolist() == [
        "age",
        "age is missing",
        "town = Ulm",
        "town = Bonn",
        "town is other",
        "town is missing",
    ]
    assert found.tolist() == [
        [-1, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [1, 0, 0, 0, 1, 0],
        [1, 0, 0, 0, 0, 1],
        [0, 1, 1, 0, 0, 0],
    ]


def test_by_place_one_pair_or_one_for_each():
    X = np.array([[0.0, 5.0], [10.0, 10.0]])
    assert PublicEncoder((0, 10)).fit_transform(X).tolist() == [[-1, 0], [1, 1]]
    assert PublicEncoder([(0, 10), (5, 10)]).fit_transform(X).tolist() == [[-1, -1], [1, 1]]
    assert PublicEncoder({1: (5, 10)}).fit_transform(X).tolist() == [[0, -1], [10, 1]]
    assert PublicEncoder().fit_transform([[1.5, np.nan], [np.inf, 2.0]]).tolist() == [[1.5, 0], [0, 2.0]]


@pytest.mark.parametrize(("made", "alone"), [(PublicEncoder((-3, 3)), True), (MinMaxScaler(), False)])
def test_a_row_follows_from_itself_alone(made, alone):
    """The twin finds its ranges in the data."""
    X = np.random.default_rng(0).normal(size=(9, 2))
    other = X.copy()
    other[0] = 50.0
    one, two = made.fit_transform(X), made.fit_transform(other)
    assert np.array_equal(one[1:], two[1:]) == alone


DAYS = pd.date_range("2020-01-01", periods=5)


@pytest.mark.parametrize("categories", [None, {"town": ["Ulm", "Bonn"]}])
@pytest.mark.parametrize("since", [DAYS, DAYS.strftime("%Y-%m-%d"), DAYS.date], ids=["dates", "text", "objects"])
def test_a_column_that_holds_no_numbers_is_named_with_its_mend(since, categories):
    frame = FRAME.assign(since=since)
    given = frame if categories else frame[["age", "since"]]
    with pytest.raises(pp.InvalidInput, match=r"are needed, in 'since'; list .*categories=.*\.dt\.days") as refused:
        PublicEncoder(categories=categories).fit_transform(given)
    assert "2020" not in str(refused.value)
    days = given.assign(since=(pd.to_datetime(frame["since"]) - pd.Timestamp("2015-01-01")).dt.days)
    assert PublicEncoder(bounds={"since": (0, 4000)}, categories=categories).fit_transform(days).shape[0] == 5


def test_a_column_of_objects_that_are_numbers_is_not_blamed():
    """Numbers with gaps often come so: only what is no number is named."""
    frame = pd.DataFrame({"age": pd.Series([18, None], dtype=object), "town": ["Ulm", "Bonn"]})
    with pytest.raises(pp.InvalidInput, match=r"in 'town'; list"):
        PublicEncoder().fit(frame)
    assert PublicEncoder().fit_transform(frame[["age"]]).tolist() == [[18], [0]]


NULLABLE = ["Int64", "Float64", "boolean", "int64[pyarrow]", "double[pyarrow]", "bool[pyarrow]"]


@pytest.mark.parametrize("kind", NULLABLE)
def test_nullable_columns_are_numbers_with_gaps_with_categories_too(kind):
    frame = pd.DataFrame({"some": pd.Series([1, None, 0], dtype=kind), "town": ["Ulm", "Bonn", "Ulm"]})
    listed = {"town": pd.Series(["Ulm", None, "Bonn"], dtype="string")}
    for X in (frame, frame.assign(**listed)):
        made = PublicEncoder({"some": (0, 1)}, {"town": ["Ulm"]}, add_indicator=True)
        assert made.fit_transform(X)[:, :2].tolist() == [[1, 0], [0, 1], [-1, 0]]
        assert PublicEncoder(categories={"town": ["Ulm"]}).fit_transform(X)[:, 0].tolist() == [1, 0, 0]
    with pytest.raises(pp.InvalidInput, match=r"are needed, in 'town'; list"):
        PublicEncoder().fit(frame)


LISTED = [
    ([True, False], bool),
    ([True, False], object),
    ([True, False], "boolean"),
    ([True, False], "bool[pyarrow]"),
    ([1, 2], float),
    ([1.0, 2.5], float),
    ([1.5, 1e-5, 1e-7, 12345678901.5, 1e16], float),
    ([1.5, 1e-5, 1e-7, 12345678901.5, 1e16], object),
    ([12345678901], float),
    (["12345678901", 2**53 - 1], float),
    (["a", b"b", np.str_("c")], object),
]


@pytest.mark.parametrize(("values", "kind"), LISTED)
def test_each_listed_value_is_found_in_its_column(values, kind):
    frame = pd.DataFrame({"some": pd.Series(values).astype(kind)})
    found = PublicEncoder(categories={"some": values}).fit_transform(frame)
    assert np.array_equal(found[:, : len(values)], np.eye(len(values)))
    for beside in (["x"] * len(values), [0.5] * len(values), pd.Series([7] * len(values), dtype="Int64")):
        both = PublicEncoder(categories={0: values, "other": ["x"]}).fit_transform(frame.assign(other=beside))
        assert np.array_equal(both[:, : len(values)], np.eye(len(values)))


def test_it_fits_into_a_column_transformer():
    numbers = ("numbers", PublicEncoder((18, 90)), ["age"])
    towns = ("towns", PublicEncoder(categories={"town": ["Ulm"]}), ["town"])
    assert ColumnTransformer([numbers, towns]).fit_transform(FRAME).shape == (5, 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"bounds": [(0, 1)] * 3}, r"shape \(3, 2\)"),
        ({"bounds": (1, 0)}, "low < high"),
        ({"bounds": {"size": (0, 1)}}, "'size'"),
        ({"bounds": {5: (0, 1)}}, "column 5"),
        ({"bounds": {0: 3}}, "pairs of numbers"),
        ({"categories": ["a"]}, "mapping"),
        ({"categories": {0: "basic"}}, "'basic'; give a list"),
        ({"categories": {0: 3}}, "hold 3; give a list"),
        ({"categories": {0: {"a", "b"}}}, "give a list"),
        ({"categories": {0: ["a", None]}}, "holds None"),
        ({"bounds": {0: (0, 1)}, "categories": {0: ["1"]}}, "both"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, said):
    with pytest.raises(pp.InvalidInput, match=said):
        PublicEncoder(**arguments).fit(np.ones((3, 2)))
