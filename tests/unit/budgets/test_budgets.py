"""Budgets: what comes in is kept as it is, or refused by an error that names it and says the mend."""

import dataclasses
import math
from decimal import ROUND_FLOOR, Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import privypurse as pp

NAN, INF = math.nan, math.inf


def csv(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def written(frame, path):
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return path


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


# ------------------------------------------------------------------------------------------------ construction


def test_one_epsilon_for_each_record_in_order():
    budgets = pp.Budgets([3, 1.5, 0.25])
    assert budgets.epsilon.tolist() == [3.0, 1.5, 0.25]
    assert len(budgets) == 3
    assert budgets.people == 3
    assert budgets.person is None
    assert budgets.owner.tolist() == [0, 1, 2]
    assert budgets.first_record.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "epsilon",
    [
        [1, 2],
        (1.0, 2.0),
        np.array([1, 2], dtype=np.int8),
        np.array([1, 2], dtype=np.float32),
        pd.Series([1, 2]),
        pa.array([1.0, 2.0]),
        [Decimal("1"), Decimal("2")],
        [np.float64(1), np.int64(2)],
    ],
    ids=lambda value: type(value).__name__,
)
def test_numbers_of_any_kind_become_float64(epsilon):
    budgets = pp.Budgets(epsilon)
    assert budgets.epsilon.dtype == np.float64
    assert budgets.delta.dtype == np.float64
    assert budgets.epsilon.tolist() == [1.0, 2.0]


def test_default_delta_is_one_in_a_hundred_thousand_for_everyone():
    assert pp.Budgets([1.0, 2.0]).delta.tolist() == [1e-5, 1e-5]


def test_budgets_cannot_be_changed():
    budgets = pp.Budgets([1.0, 2.0], delta=[1e-5, 1e-6], person=["a", "b"])
    for name in ("epsilon", "delta", "person", "owner"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(budgets, name)[0] = getattr(budgets, name)[1]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(budgets, name, np.array([9.0, 9.0]))
    assert budgets.epsilon.tolist() == [1.0, 2.0]


def test_the_callers_arrays_are_copied_and_stay_writable():
    epsilon, delta, person = np.array([1.0, 2.0]), np.array([1e-5, 1e-6]), np.array([7, 8])
    budgets = pp.Budgets(epsilon, delta=delta, person=person)
    epsilon[:], delta[:], person[:] = 99.0, 0.5, 0
    assert budgets.epsilon.tolist() == [1.0, 2.0]
    assert budgets.delta.tolist() == [1e-5, 1e-6]
    assert budgets.person.tolist() == [7, 8]


def test_budgets_of_equal_content_are_equal_and_others_are_not():
    assert pp.Budgets([1.0, 2.0]) == pp.Budgets([1, 2])
    assert pp.Budgets([1.0, 2.0]) != pp.Budgets([2.0, 1.0])
    assert pp.Budgets([1.0, 2.0]) != pp.Budgets([1.0, 2.0], delta=1e-6)
    assert pp.Budgets([1.0, 1.0]) != pp.Budgets([1.0, 1.0], person=["a", "a"])
    assert pp.Budgets([1.0]) != [1.0]
    with pytest.raises(TypeError):
        hash(pp.Budgets([1.0]))


def test_repr_counts_and_shows_the_range():
    shown = repr(pp.Budgets([0.5, 2.0, 0.5], person=["a", "b", "a"]))
    for word in ("3 records", "2 people", "0.5", "2"):
        assert word in shown


# ------------------------------------------------------------------------------------------------------- delta


@pytest.mark.parametrize("delta", [1.2345678e-7, 3e-6, 0.1 + 0.2, 0.999, np.float64(1.7e-5)])
def test_one_delta_for_all_is_kept_exactly(delta):
    assert pp.Budgets([1.0, 2.0], delta=delta).delta.tolist() == [float(delta)] * 2


def test_many_deltas_are_rounded_down_to_one_digit():
    given = [1e-5, 1.99e-5, 2e-5, 9.999e-6, 0.3, 0.37, 5e-324 + 1e-9, 0.1]
    kept = pp.Budgets(np.ones(len(given)), delta=given).delta
    assert kept.tolist() == [1e-5, 1e-5, 2e-5, 9e-6, 0.3, 0.3, 1e-9, 0.1]


def test_rounded_deltas_are_one_digit_decimals_that_are_never_looser():
    given = np.random.default_rng(5).uniform(-9, 0, 500)
    given = 10.0**given
    kept = pp.Budgets(np.ones(given.size), delta=given).delta
    for before, after in zip(given.tolist(), kept.tolist(), strict=True):
        exponent = Decimal(before).adjusted()
        floor = Decimal(before).scaleb(-exponent).to_integral_value(ROUND_FLOOR).scaleb(exponent)
        assert after == float(floor)
        assert after <= before < 2 * after


def test_a_delta_does_not_depend_on_the_others():
    alone = pp.Budgets([1.0, 1.0], delta=[3.7e-6, 3.7e-6]).delta[0]
    in_company = pp.Budgets([1.0, 1.0, 1.0], delta=[0.5, 3.7e-6, 1e-9]).delta[1]
    assert alone == in_company == 3e-6


# ------------------------------------------------------------------------------------------------------ levels


def test_levels_stand_for_their_epsilon():
    levels = ["strict", "relaxed", "medium", "strict"]
    budgets = pp.Budgets.from_levels(levels, {"strict": 1.0, "medium": 2, "relaxed": 3.0, "unused": 9.0}, delta=1e-6)
    assert budgets.epsilon.tolist() == [1.0, 3.0, 2.0, 1.0]
    assert budgets.delta.tolist() == [1e-6] * 4


@pytest.mark.parametrize(
    "levels",
    [[2, 0, 1], np.array([2, 0, 1], dtype=np.int16), pd.Series([2, 0, 1]), pd.Categorical([2, 0, 1])],
    ids=lambda value: type(value).__name__,
)
def test_levels_may_be_numbers_or_categories(levels):
    assert pp.Budgets.from_levels(levels, {0: 0.1, 1: 1.0, 2: 5.0}).epsilon.tolist() == [5.0, 0.1, 1.0]


def test_levels_of_mixed_kinds_are_looked_up():
    levels = np.array(["strict", 7, "strict"], dtype=object)
    assert pp.Budgets.from_levels(levels, {"strict": 1.0, 7: 2.0}).epsilon.tolist() == [1.0, 2.0, 1.0]


def test_levels_with_persons():
    budgets = pp.Budgets.from_levels(["s", "r", "s"], {"s": 1.0, "r": 2.0}, person=["anna", "bo", "anna"])
    assert budgets.people == 2
    assert budgets.owner.tolist() == [0, 1, 0]


# ----------------------------------------------------------------------------------------------------- persons


def test_records_of_one_person_are_one_unit_in_order_of_first_appearance():
    budgets = pp.Budgets([2.0, 1.0, 2.0, 5.0, 1.0], person=["zoe", "bo", "zoe", "anna", "bo"])
    assert len(budgets) == 5
    assert budgets.people == 3
    assert budgets.owner.tolist() == [0, 1, 0, 2, 1]
    assert budgets.first_record.tolist() == [0, 1, 3]
    assert budgets.epsilon.tolist() == [2.0, 1.0, 2.0, 5.0, 1.0]


@pytest.mark.parametrize(
    "spelling",
    [[30, 10, 30, 20], ["c", "a", "c", "b"], np.array([b"c", b"a", b"c", b"b"])],
    ids=["integers", "text", "bytes"],
)
def test_the_order_of_records_decides_not_the_spelling_of_ids(spelling):
    assert pp.Budgets([1.0] * 4, person=spelling).owner.tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize("ids", [["7", 7, "07", 8], np.array(["7", 7, "07", np.int64(8)], dtype=object)])
def test_ids_are_compared_as_text_so_that_tables_and_frames_hold_the_same_people(ids):
    budgets = pp.Budgets([1.0] * 4, person=ids)
    assert budgets.owner.tolist() == [0, 0, 1, 2]
    assert [budgets.unit_of(who) for who in (7, "7", "07", "8", 8)] == [0, 0, 1, 2, 2]


NO_IDS = {
    "floats": np.array([1.0, 2.0]),
    "a float beside text": ["a", 2.5],
    "nan beside text": ["a", NAN],
    "booleans": [True, False],
    "dates": np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]"),
    "a tuple": np.array([("x", 1), "x"], dtype=object),
    "empty text": ["a", ""],
    "pandas NA": pd.array(["a", pd.NA], dtype="string"),
}


@pytest.mark.parametrize("case", NO_IDS)
def test_what_is_no_id_is_refused(case):
    with pytest.raises(pp.InvalidInput, match=r"person\[\d\] is .* text or a whole number"):
        pp.Budgets([1.0, 1.0], person=NO_IDS[case])


def test_budgets_of_other_people_are_other_budgets():
    assert pp.Budgets([1.0, 2.0], person=["a", "b"]) == pp.Budgets([1.0, 2.0], person=["a", "b"])
    assert pp.Budgets([1.0, 2.0], person=["a", "b"]) != pp.Budgets([1.0, 2.0], person=["a", "c"])
    assert pp.Budgets([1.0, 2.0], person=[1, 2]) == pp.Budgets([1.0, 2.0], person=["1", "2"])


def test_a_person_without_a_budget_is_refused_by_name():
    with pytest.raises(pp.InvalidInput, match="person is 'z', who has no budget here"):
        pp.Budgets([1.0, 2.0], person=["a", "b"]).unit_of("z")
    with pytest.raises(pp.InvalidInput, match="record must be a whole number from 0 to 1, not 2"):
        pp.Budgets([1.0, 2.0]).unit_of(2)


def test_two_epsilons_of_one_person_are_refused_by_name():
    with pytest.raises(pp.InvalidInput) as caught:
        pp.Budgets([1.0, 2.0, 1.0, 2.5], person=["anna", "bo", "anna", "bo"])
    message = str(caught.value)
    for word in ("bo", "epsilon", "record 1 ", "record 3", "smaller"):
        assert word in message
    assert "anna" not in message


def test_two_deltas_of_one_person_are_refused_by_name():
    with pytest.raises(pp.InvalidInput, match=r"person 17 .*delta"):
        pp.Budgets([1.0, 1.0], delta=[1e-5, 1e-6], person=[17, 17])


def test_two_deltas_that_round_to_the_same_digit_agree():
    assert pp.Budgets([1.0, 1.0], delta=[1.2e-5, 1.7e-5], person=[17, 17]).people == 1


# -------------------------------------------------------------------------------------------- frames and files


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "who": ["anna", "bo", "anna", "cy"],
            "budget": [1.0, 0.25, 1.0, 8.0],
            "failure": [1e-5, 2.5e-6, 1e-5, 1e-7],
            "consent": ["mid", "low", "mid", "high"],
        }
    )


def assert_is_the_frame(budgets):
    assert budgets.epsilon.tolist() == [1.0, 0.25, 1.0, 8.0]
    assert budgets.delta.tolist() == [1e-5, 2e-6, 1e-5, 1e-7]
    assert budgets.owner.tolist() == [0, 1, 0, 2]
    assert budgets.people == 3


@pytest.mark.parametrize("kind", ["frame", "csv", "parquet"])
def test_columns_of_frames_and_files(frame, tmp_path, kind):
    if kind == "frame":
        assert_is_the_frame(pp.Budgets.read(frame, "budget", delta="failure", person="who"))
        return
    path = written(frame, tmp_path / f"people.{kind}")
    assert_is_the_frame(pp.Budgets.read(path, "budget", delta="failure", person="who"))
    assert_is_the_frame(pp.Budgets.read(str(path), epsilon="budget", delta="failure", person="who"))


@pytest.mark.parametrize("kind", ["frame", "csv", "parquet"])
def test_level_columns_of_frames_and_files(frame, tmp_path, kind):
    levels = {"low": 0.25, "mid": 1.0, "high": 8.0}
    if kind == "frame":
        budgets = pp.Budgets.read(frame, level="consent", levels=levels)
    else:
        path = written(frame, tmp_path / f"people.{kind}")
        budgets = pp.Budgets.read(path, level="consent", levels=levels)
    assert budgets.epsilon.tolist() == [1.0, 0.25, 1.0, 8.0]


def test_the_column_of_budgets_is_called_epsilon_unless_said_otherwise(tmp_path):
    path = csv(tmp_path / "people.csv", "epsilon,other\n1,9\n2,9\n")
    assert pp.Budgets.read(path).epsilon.tolist() == [1.0, 2.0]
    assert pp.Budgets.read(path, "other").epsilon.tolist() == [9.0, 9.0]
    assert pp.Budgets.read(pd.DataFrame({"epsilon": [1.0, 2.0]})).epsilon.tolist() == [1.0, 2.0]


def test_csv_numbers_may_have_spaces_exponents_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "people.CSV"
    path.write_bytes("\ufeffepsilon,x\n 1.5 ,a\n2e-1,b\n3,c\n".encode())
    assert pp.Budgets.read(path).epsilon.tolist() == [1.5, 0.2, 3.0]


def test_csv_ids_are_text_so_leading_zeros_count(tmp_path):
    path = csv(tmp_path / "people.csv", "epsilon,id\n1,007\n2,7\n")
    assert pp.Budgets.read(path, person="id").people == 2


def test_parquet_whole_numbers_and_categories(tmp_path):
    path = parquet(
        tmp_path / "people.pq", epsilon=pa.array([1, 2, 1]), id=pa.array(["a", "b", "a"]).dictionary_encode()
    )
    budgets = pp.Budgets.read(path, person="id")
    assert budgets.epsilon.tolist() == [1.0, 2.0, 1.0]
    assert budgets.owner.tolist() == [0, 1, 0]


def test_a_number_wide_of_the_first_block_of_a_csv_is_still_checked(tmp_path):
    rows = 200_000
    path = csv(tmp_path / "people.csv", "epsilon,x\n" + "1,2\n" * rows + "many,2\n")
    with pytest.raises(pp.InvalidInput, match=rf"'epsilon', row {rows + 1} .* holds a text, not a number"):
        pp.Budgets.read(path)


# --------------------------------------------------------------------------------------------------- bad input

BAD_ARRAYS = {
    "nan": (lambda: pp.Budgets([1.0, NAN, 2.0, NAN]), ["epsilon[1]", "nan", "2 such", "positive number"]),
    "inf": (lambda: pp.Budgets([1.0, INF]), ["epsilon[1]", "inf", "finite", "large"]),
    "minus inf": (lambda: pp.Budgets([-INF, 1.0]), ["epsilon[0]", "-inf", "finite"]),
    "zero": (lambda: pp.Budgets([1.0, 2.0, 0.0]), ["epsilon[2]", "0.0", "positive", "leave out"]),
    "negative": (lambda: pp.Budgets([1.0, -0.5]), ["epsilon[1]", "-0.5", "positive", "leave out"]),
    "negative integer": (lambda: pp.Budgets([1, -1]), ["epsilon[1]", "-1", "positive"]),
    "empty": (lambda: pp.Budgets([]), ["epsilon", "empty", "at least one"]),
    "text": (lambda: pp.Budgets(["1.0", "2.0"]), ["epsilon[0]", "1.0", "not a number", "give a float"]),
    "booleans": (lambda: pp.Budgets([True, False]), ["epsilon[0]", "True", "not a number"]),
    "None inside": (lambda: pp.Budgets([1.0, None]), ["epsilon[1]", "None", "not a number"]),
    "object": (lambda: pp.Budgets([1.0, object()]), ["epsilon[1]", "not a number"]),
    "complex": (lambda: pp.Budgets([1 + 1j]), ["epsilon[0]", "1j", "not a number"]),
    "None": (lambda: pp.Budgets(None), ["epsilon", "one-dimensional", "one number for each record"]),
    "scalar": (lambda: pp.Budgets(1.0), ["epsilon", "one-dimensional", "one number for each record"]),
    "2-D": (lambda: pp.Budgets([[1.0, 2.0]]), ["epsilon", "one-dimensional", "(1, 2)"]),
    "ragged": (lambda: pp.Budgets([[1.0], [1.0, 2.0]]), ["epsilon", "flat sequence"]),
    "delta zero": (lambda: pp.Budgets([1.0], delta=0.0), ["delta", "0.0", "between 0 and 1", "1e-5"]),
    "delta one": (lambda: pp.Budgets([1.0], delta=1), ["delta", "1.0", "between 0 and 1"]),
    "delta negative": (lambda: pp.Budgets([1.0], delta=-1e-5), ["delta", "-1e-05", "between 0 and 1"]),
    "delta nan": (lambda: pp.Budgets([1.0], delta=NAN), ["delta", "nan", "between 0 and 1"]),
    "delta None": (lambda: pp.Budgets([1.0], delta=None), ["delta", "a finite number, not None"]),
    "delta boolean": (lambda: pp.Budgets([1.0], delta=True), ["delta", "a finite number, not True"]),
    "delta text": (lambda: pp.Budgets([1.0], delta="small"), ["delta", "a finite number, not 'small'"]),
    "deltas outside": (lambda: pp.Budgets([1.0] * 3, delta=[0.1, 1.0, 2.0]), ["delta[1]", "1.0", "between 0 and 1"]),
    "deltas nan": (lambda: pp.Budgets([1.0] * 2, delta=[0.1, NAN]), ["delta[1]", "nan", "between 0 and 1"]),
    "deltas length": (
        lambda: pp.Budgets([1.0] * 3, delta=[0.1, 0.1]),
        ["delta", "2", "3", "one number, or one each"],
    ),
    "deltas 2-D": (lambda: pp.Budgets([1.0], delta=[[0.1]]), ["delta", "one-dimensional"]),
    "person length": (lambda: pp.Budgets([1.0, 2.0], person=["a"]), ["person", "one id for each", "2 records"]),
    "person 2-D": (lambda: pp.Budgets([1.0], person=[["a"]]), ["person", "one id for each"]),
    "person None": (lambda: pp.Budgets([1.0] * 2, person=["a", None]), ["person[1]", "None", "its owner"]),
    "person nan": (lambda: pp.Budgets([1.0] * 2, person=[1.0, NAN]), ["person[1]", "nan", "its owner"]),
    "level unknown": (
        lambda: pp.Budgets.from_levels(["a", "b", "c", "c"], {"a": 1.0, "b": 2.0}),
        ["levels[2]", "'c'", "without an ε", "'a', 'b'"],
    ),
    "level not positive": (lambda: pp.Budgets.from_levels(["a"], {"a": 0.0}), ["'a'", "above 0, not 0.0"]),
    "level not finite": (lambda: pp.Budgets.from_levels(["a"], {"a": INF}), ["'a'", "inf", "finite"]),
    "level ε is text": (
        lambda: pp.Budgets.from_levels(["a"], {"a": "1"}),
        ["level 'a'", "above 0, not '1'"],
    ),
    "level mapping empty": (lambda: pp.Budgets.from_levels(["a"], {}), ["mapping", "empty", "give an ε"]),
    "levels empty": (lambda: pp.Budgets.from_levels([], {"a": 1.0}), ["levels", "non-empty"]),
    "levels 2-D": (lambda: pp.Budgets.from_levels([["a"]], {"a": 1.0}), ["levels", "flat", "(1, 1)"]),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays_are_refused(case):
    make, words = BAD_ARRAYS[case]
    with pytest.raises(pp.InvalidInput) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_the_error_is_a_value_error_and_one_of_ours():
    assert issubclass(pp.InvalidInput, ValueError)
    assert issubclass(pp.InvalidInput, pp.PrivyPurseError)


BAD_CSV = {
    "missing column": ("eps,x\n1,2\n", {}, ["'epsilon'", "no column", "'eps', 'x'"]),
    "missing delta column": ("epsilon,x\n1,2\n", {"delta": "delta"}, ["'delta'", "no column", "'epsilon', 'x'"]),
    "missing person column": ("epsilon,x\n1,2\n", {"person": "id"}, ["'id'", "no column", "'epsilon', 'x'"]),
    "duplicate column": ("epsilon,epsilon\n1,2\n", {}, ["'epsilon'", "2 columns", "rename"]),
    "empty cell": ("epsilon,x\n1,a\n,b\n", {}, ["'epsilon'", "row 2", "empty"]),
    "blank cell": ("epsilon,x\n1,a\n  ,b\n", {}, ["'epsilon'", "row 2", "empty"]),
    "decimal comma": ('epsilon,x\n1.5,a\n"2,5",b\n', {}, ["'epsilon'", "row 2", "a text", "with a point"]),
    "text": ("epsilon,x\n1,a\n2,b\nlots,c\n", {}, ["'epsilon'", "row 3", "a text, not a number"]),
    "boolean": ("epsilon,x\ntrue,a\n", {}, ["'epsilon'", "row 1", "a text, not a number"]),
    "NaN": ("epsilon,x\n1,a\nNaN,b\n", {}, ["people.csv", "'epsilon'", "row 2", "no budget"]),
    "inf": ("epsilon,x\n1,a\ninf,b\n", {}, ["epsilon", "row 2", "finite"]),
    "zero": ("epsilon,x\n1,a\n0,b\n", {}, ["'epsilon'", "row 2", "not shown", "positive"]),
    "blank line": ("epsilon\n1\n\n2\n", {}, ["'epsilon'", "row 2", "empty"]),
    "underscore": ("epsilon,x\n1,a\n1_0,b\n", {}, ["'epsilon'", "row 2", "a text", "not a number"]),
    "too small": ("epsilon,x\n1,a\n1e-300,b\n", {}, ["'epsilon'", "row 2", "not shown", "1e-09"]),
    "negative": ("epsilon,x\n1,a\n-1,b\n", {}, ["epsilon", "row 2", "positive"]),
    "delta outside": (
        "epsilon,d\n1,1e-5\n1,1\n",
        {"delta": "d"},
        ["people.csv", "'d'", "row 2", "not shown", "between 0 and 1"],
    ),
    "delta text": ("epsilon,d\n1,1e-5\n1,small\n", {"delta": "d"}, ["'d'", "row 2", "a text, not a number"]),
    "empty id": ("epsilon,id\n1,a\n1,\n", {"person": "id"}, ["'id'", "row 2", "empty", "fill it in"]),
    "two ε of a person": ("epsilon,id\n1,a\n2,a\n", {"person": "id"}, ["person a", "epsilon", "smaller"]),
    "level without ε": (
        "l,x\nlow,1\nodd,2\n",
        {"level": "l", "levels": {"low": 1.0, "high": 2.0}},
        ["'l'", "row 2", "a text without an ε", "'low', 'high'"],
    ),
    "empty level": ("l,x\nlow,1\n,2\n", {"level": "l", "levels": {"low": 1.0}}, ["'l'", "row 2", "fill it in"]),
    "level and epsilon": (
        "epsilon,l\n1,a\n",
        {"epsilon": "epsilon", "level": "l", "levels": {"a": 1.0}},
        ["not both"],
    ),
    "level alone": ("l\na\n", {"level": "l"}, ["given is level=", "and levels= (which"]),
    "levels alone": ("epsilon,l\n1,a\n", {"levels": {"a": 1.0}}, ["given is levels=", "or level= (a column"]),
    "header only": ("epsilon,x\n", {}, ["people.csv", "no rows", "at least one"]),
    "nothing": ("", {}, ["people.csv", "cannot be read", "Empty"]),
    "ragged": ("epsilon,x\n1,2\n3\n", {}, ["people.csv", "cannot be read"]),
    "semicolons": ("epsilon;x\n1;2\n", {}, ["'epsilon'", "no column", "epsilon;x", "separated by commas"]),
}


@pytest.mark.parametrize("case", BAD_CSV)
def test_bad_csv_files_are_refused(tmp_path, case):
    text, arguments, words = BAD_CSV[case]
    with pytest.raises(pp.InvalidInput) as caught:
        pp.Budgets.read(csv(tmp_path / "people.csv", text), **arguments)
    for word in words:
        assert word in str(caught.value)


BAD_PARQUET = {
    "missing column": ({"eps": [1.0]}, {}, ["'epsilon'", "no column", "eps"]),
    "null": ({"epsilon": [1.0, None]}, {}, ["'epsilon'", "row 2", "empty", "fill it in"]),
    "NaN": ({"epsilon": [1.0, NAN]}, {}, ["epsilon", "row 2", "no budget"]),
    "booleans": ({"epsilon": [True, False]}, {}, ["'epsilon'", "bool", "not numbers"]),
    "text": ({"epsilon": ["1", "x"]}, {}, ["'epsilon'", "row 2", "a text, not a number"]),
    "lists": ({"epsilon": [[1.0]]}, {}, ["'epsilon'", "list", "not numbers"]),
    "null id": ({"epsilon": [1.0, 1.0], "id": [3, None]}, {"person": "id"}, ["'id'", "row 2", "fill it in"]),
    "no rows": ({"epsilon": pa.array([], pa.float64())}, {}, ["no rows", "at least one"]),
}


@pytest.mark.parametrize("case", BAD_PARQUET)
def test_bad_parquet_files_are_refused(tmp_path, case):
    columns, arguments, words = BAD_PARQUET[case]
    with pytest.raises(pp.InvalidInput) as caught:
        pp.Budgets.read(parquet(tmp_path / "people.parquet", **columns), **arguments)
    for word in words:
        assert word in str(caught.value)


def test_numeric_text_in_parquet_is_read_as_numbers(tmp_path):
    assert pp.Budgets.read(parquet(tmp_path / "p.parquet", epsilon=["1.5", "2"])).epsilon.tolist() == [1.5, 2.0]


BAD_FILES = {
    "missing": ("nobody.csv", None, ["nobody.csv", "does not exist"]),
    "unknown ending": ("people.xlsx", b"epsilon\n1\n", ["people.xlsx", "neither .csv nor .parquet", "convert"]),
    "no ending": ("people", b"epsilon\n1\n", ["people", "neither .csv nor .parquet"]),
    "damaged parquet": ("people.parquet", b"not parquet at all", ["people.parquet", "cannot be read"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused(tmp_path, case):
    name, content, words = BAD_FILES[case]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(pp.InvalidInput) as caught:
        pp.Budgets.read(tmp_path / name)
    for word in words:
        assert word in str(caught.value)


BAD_FRAMES = {
    "not a frame": ([1.0], {}, ["frame", "DataFrame", "list"]),
    "missing column": (pd.DataFrame({"a": [1.0]}), {}, ["'epsilon'", "no column", "a"]),
    "NaN": (pd.DataFrame({"epsilon": [1.0, NAN]}), {}, ["frame['epsilon'], row 1", "no budget"]),
    "missing value": (
        pd.DataFrame({"epsilon": pd.array([1, None], dtype="Int64")}),
        {},
        ["frame['epsilon'], row 1", "no budget"],
    ),
    "text": (pd.DataFrame({"epsilon": ["1", "2"]}), {}, ["frame['epsilon'][0]", "not a number"]),
    "booleans": (pd.DataFrame({"epsilon": [True]}), {}, ["frame['epsilon'][0]", "not a number"]),
    "no rows": (pd.DataFrame({"epsilon": []}), {}, ["epsilon", "empty", "at least one"]),
    "missing id": (pd.DataFrame({"epsilon": [1.0] * 2, "id": ["a", None]}), {"person": "id"}, ["person[1]", "owner"]),
    "missing level": (
        pd.DataFrame({"l": ["a", None]}),
        {"level": "l", "levels": {"a": 1.0}},
        ["'l'", "row 1", "without an ε", "'a'"],
    ),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_bad_frames_are_refused(case):
    frame, arguments, words = BAD_FRAMES[case]
    with pytest.raises(pp.InvalidInput) as caught:
        pp.Budgets.read(frame, **arguments)
    for word in words:
        assert word in str(caught.value)


def test_purses_for_rows_have_one_delta_only_where_one_was_given():
    """That all of a column happen to be alike tells of everybody."""
    ids, rows = ["a", "b"], ["b", "a", "b"]
    alike = pp.Budgets([1.0, 2.0], delta=np.array([1e-5, 1e-5]), person=ids).for_rows(rows)
    given = pp.Budgets([1.0, 2.0], delta=1e-5, person=ids).for_rows(rows)
    assert not alike.one_delta
    assert given.one_delta
    np.testing.assert_array_equal(alike.epsilon, [2.0, 1.0, 2.0])
    np.testing.assert_array_equal(alike.epsilon, given.epsilon)
