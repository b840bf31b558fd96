"""PrivateClassifier and PrivateRegressor: whose ε is kept, what is read off the data, what is told and handed on."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import traceback
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import MinMaxScaler

import privypurse as pp
from privypurse.sklearn import LabelsNotPrivate, PrivateClassifier, PrivateRegressor, SpentBefore, private_estimator
from privypurse.sklearn.public_encoder import PublicEncoder

SEEDED = pytest.mark.filterwarnings("ignore:seed=:privypurse.PrivyPurseWarning")


def trained_on(monkeypatch, estimator, X, y, **more):
    """What `fit` hands to `train`: the data set and the plan."""
    seen = []
    monkeypatch.setattr(private_estimator, "train", lambda *given, **options: seen.append((given[2], given[3])))
    estimator.fit(X, y, **more)
    return seen[0]


def test_everybody_alike(table, classifier):
    X, y, _ = table
    assert classifier.fit(X, y) is classifier
    assert set(classifier.spent_) == set(range(48))
    assert 0.9 < max(classifier.spent_.values()) <= 1.0
    assert classifier.classes_.tolist() == ["no", "yes"]
    assert set(classifier.predict(X)) <= {"no", "yes"}
    proba = classifier.predict_proba(X)
    assert proba.sum(axis=1) == pytest.approx(1)
    assert (proba[:, 1] > 0.5).tolist() == (classifier.predict(X) == "yes").tolist()
    assert proba[:, 1] == pytest.approx(1 / (1 + np.exp(-classifier.decision_function(X))))


def test_numbers_lie_in_their_range(table, regressor):
    X, _, y = table
    found = regressor.fit(X, y).predict(100 * X)
    assert found.min() >= -12
    assert found.max() <= 12
    assert np.isfinite(regressor.score(X, y))


DAYS = pd.date_range("2020-01-01", periods=48)
NO_NUMBERS = {
    "days": DAYS,
    "days of pandas": pd.Series(DAYS),
    "time spans": DAYS - DAYS[0],
    "objects of days": DAYS.date,
    "text": np.arange(48).astype(str),
    "text of pandas": pd.Series(np.arange(48).astype(str)),
    "objects of text": np.arange(48).astype(str).astype(object),
    "bytes": np.arange(48).astype("S"),
    "none": np.array([None, *range(47)], dtype=object),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_targets_that_are_no_numbers_are_refused(table, regressor, kind):
    """NumPy makes nanoseconds of days, and NaN of None, without a word."""
    with pytest.raises(pp.InvalidInput, match="y holds text, dates or nothing where numbers are needed; give"):
        regressor.fit(table[0], NO_NUMBERS[kind])


@pytest.mark.parametrize("kind", [bool, "u1", object, "Int64", "Float64", "boolean"])
def test_targets_of_any_kind_of_number(table, regressor, kind):
    X, _, y = table
    regressor.set_params(random_state=0, steps=1)
    with pytest.warns(pp.PrivyPurseWarning, match="seed="):
        assert regressor.fit(X, pd.Series(y > 0).astype(int).astype(kind)).predict(X).shape == (48,)


def test_several_classes(table, classifier):
    X, _, y = table
    labels = np.digitize(y, [-3, 3])
    classifier.set_params(classes=[0, 1, 2, 3], hidden=(4,)).fit(X, labels)
    assert classifier.predict_proba(X).shape == classifier.decision_function(X).shape == (48, 4)
    assert (classifier.predict_proba(X).argmax(axis=1) == classifier.predict(X)).all()


@SEEDED
@pytest.mark.parametrize("kind", [bool, float, object, "U3"])
def test_labels_of_any_kind(table, classifier, kind):
    X, y, _ = table
    labels = y.astype(kind) if kind in (object, "U3") else (y == "yes").astype(kind)
    classifier.set_params(classes=np.unique(labels), random_state=0, steps=1).fit(X, labels)
    assert set(classifier.predict(X).tolist()) <= set(labels.tolist())


def test_budgets_follow_people_and_not_rows(table, classifier):
    """The twin, by place, overdraws: rows come in another order than budgets."""
    X, y, _ = table
    ids, epsilon = np.array([f"C{k}" for k in range(48)]), np.where(np.arange(48) % 3 == 0, 0.5, 5.0)
    budgets, order = pp.Budgets(epsilon, person=ids), np.random.default_rng(1).permutation(48)
    granted = dict(zip(ids, epsilon, strict=True))
    classifier.set_params(epsilon=None, noise_multiplier=1.0, batch_size=12)
    by_id = classifier.fit(X[order], y[order], budgets=budgets, ids=ids[order]).spent_
    assert all(by_id[who] <= granted[who] for who in ids)
    assert max(by_id.values()) > 2.5  # and not everybody is treated as the strictest
    with pytest.warns(SpentBefore, match="rows like some of these"):
        by_place = classifier.fit(X[order], y[order], budgets=pp.Budgets(epsilon)).spent_
    assert any(by_place[row] > granted[ids[order[row]]] for row in range(48))


def test_one_budget_for_each_row(table, classifier):
    X, y, _ = table
    epsilon = np.where(np.arange(48) % 3 == 0, 0.5, 5.0)
    classifier.set_params(epsilon=None, noise_multiplier=1.0, batch_size=12)
    spent = classifier.fit(X, y, budgets=epsilon).spent_
    assert (np.array([spent[row] for row in range(48)]) <= epsilon).all()


def test_all_rows_of_a_person_are_one_unit(table, classifier, monkeypatch):
    X, y, _ = table
    ids = np.repeat(np.arange(16), 3)
    _, plan = trained_on(monkeypatch, classifier, X, y, ids=ids)
    assert plan.people == 16
    assert plan.shape.batch_size == 16
    assert len(classifier.spent_) == 16


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"budgets": dict.fromkeys(range(48), 1.0)}, "budgets is a dict"),
        ({"budgets": [1.0] * 48}, "budgets is a list"),
        ({"budgets": np.ones(47)}, "47 entries"),
        ({"budgets": pp.Budgets(np.ones(47))}, "47 entries"),
        ({"budgets": pp.Budgets(np.ones(48), person=range(48))}, "ids="),
        ({"budgets": pp.Budgets(np.ones(48)), "ids": range(48)}, "person=ids"),
        ({"budgets": np.ones(48), "ids": range(47)}, "ids has 47"),
        ({"budgets": np.ones(48), "epsilon": 1.0}, "leave one of them out"),
        ({}, "epsilon="),
    ],
)
def test_budgets_that_fit_nobody_are_refused(table, classifier, more, named):
    X, y, _ = table
    classifier.set_params(epsilon=more.pop("epsilon", None))
    with pytest.raises(pp.InvalidInput, match=named):
        classifier.fit(X, y, **more)


def test_what_is_public_is_not_read_off_the_data(table, classifier, regressor):
    X, labels, numbers = table
    with pytest.raises(pp.InvalidInput, match="classes="):
        classifier.set_params(classes=None).fit(X, labels)
    with pytest.raises(pp.InvalidInput, match="target_bounds="):
        regressor.set_params(target_bounds=None).fit(X, numbers)
    with pytest.raises(pp.InvalidInput, match="batch_size="):
        regressor.set_params(target_bounds=(-1, 1), noise_multiplier=30.0).fit(X, numbers)
    with pytest.warns(LabelsNotPrivate, match="not private"):
        classifier.set_params(classes="from the data").fit(X, labels)
    assert classifier.classes_.tolist() == ["no", "yes"]


class ScalesByData(PrivateRegressor):
    """The twin: ranges as they are found."""

    __init__ = PrivateRegressor.__init__

    def _encoder(self):
        class Found(PublicEncoder):
            def _encoded(self, cells):
                return MinMaxScaler().fit_transform(cells)

        return Found()


@pytest.mark.parametrize("estimator", [PrivateRegressor, ScalesByData])
def test_one_persons_row_moves_nobody_elses(table, monkeypatch, estimator):
    """Neighbouring tables give the same plan, and the same inputs and targets but for that person's."""
    X, _, y = table
    other_X, other_y = X.copy(), y.copy()
    other_X[7], other_y[7] = [1e9, -np.inf, np.nan], 1e12
    made = estimator(1.0, target_bounds=(-12, 12), bounds=[(-1, 1), (-1, 1), (-2, 2)], steps=3, accountant="rdp")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if estimator is ScalesByData:
            other_X[7] = [1e9, -1e9, 1e9]  # its scaler refuses others
        (one, plan), (two, other_plan) = (
            trained_on(monkeypatch, made, *given) for given in ((X, y), (other_X, other_y))
        )
    others = np.arange(48) != 7
    alike = all(torch.equal(a[others], b[others]) for a, b in zip(one.tensors, two.tensors, strict=True))
    assert plan.digest() == other_plan.digest()
    assert alike == (estimator is PrivateRegressor)
    if alike:
        assert two.tensors[0][7].tolist() == [1.0, -1.0, 0.0]  # beyond an end, and missing
        assert two.tensors[1][7] == 1.0


def test_presence_is_protected_with_noise_that_is_given(table, classifier):
    X, y, _ = table
    classifier.set_params(noise_multiplier=8.0, batch_size=10).fit(X, y)
    assert classifier.plan_.promise is pp.Promise.PRESENCE
    assert classifier.plan_.noise_multiplier == 8.0


def test_a_fit_is_random_unless_it_is_seeded_and_then_says_so(table, classifier):
    X, y, _ = table
    one, two = (clone(classifier).fit(X[:24], y[:24]), clone(classifier).fit(X[24:], y[24:]))
    assert not np.array_equal(one.decision_function(X), two.decision_function(X))
    found = []
    for seed in (3, 3, 4, np.random.RandomState(5)):
        with pytest.warns(pp.PrivyPurseWarning, match="nothing is private"):
            found.append(clone(classifier).set_params(random_state=seed).fit(X, y).decision_function(X))
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])
    with pytest.raises(pp.InvalidInput, match="random_state"):
        classifier.set_params(random_state="chance").fit(X, y)


@SEEDED
def test_torchs_own_generator_stays_where_it_was(table, classifier):
    X, y, _ = table
    before = torch.random.get_rng_state()
    classifier.set_params(hidden=(4,), random_state=0).fit(X, y)
    assert torch.equal(before, torch.random.get_rng_state())


def test_weights_and_what_else_is_not_taken_are_refused_by_name(table, classifier):
    X, y, _ = table
    with pytest.raises(pp.InvalidInput, match="sample_weight"):
        classifier.fit(X, y, sample_weight=np.ones(48))
    with pytest.raises(TypeError, match="coef_init"):
        classifier.fit(X, y, coef_init=0)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        classifier.fit(scipy.sparse.csr_matrix(X), y)
    with pytest.raises(pp.InvalidInput, match="hidden"):
        classifier.set_params(hidden=3).fit(X, y)


SECRET = "Zyklop"


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.array([[SECRET, "1"], ["2", "3"]]), ["no", "yes"]),
        (np.array([[SECRET, 1.0], [2.0, 3.0]], dtype=object), ["no", "yes"]),
        (pd.DataFrame({"a": [SECRET, 1.0], "b": [2.0, 3.0]}), ["no", "yes"]),
        ([[1.0, 2.0], [3.0, 4.0]], [SECRET, "no"]),
        ([[1.0, 2.0], [3.0, 4.0]], np.array([SECRET, 1.0], dtype=object)),
        ([[1.0, 2.0], [3.0, 4.0]], np.array([(SECRET,), {SECRET}], dtype=object)),
        (np.array([70701.0, 2.0]), ["no", "yes"]),
        (np.array([[70701.0 + 1j, 2.0], [3.0, 4.0]]), ["no", "yes"]),
        ([[1.0, 2.0], [3.0, 4.0]], [70701.0, np.inf]),
        ([[1.0, 2.0], [3.0, 4.0]], np.array([70701.0 + 1j, 2.0])),
        ([[1.0, 2.0], [3.0, 4.0]], [70701.0, np.nan]),
        ([[1.0, 2.0], [3.0, 4.0], [70701.0, 0.0]], ["no", "yes"]),
    ],
)
@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_no_cell_is_shown_by_an_error(X, y, kind, request):
    estimator = request.getfixturevalue(kind)
    with pytest.raises((ValueError, TypeError)) as raised:
        estimator.fit(X, y)
    said = "".join(traceback.format_exception(raised.value, limit=0))
    assert SECRET not in said
    assert "70701" not in said


def test_a_pickle_can_be_handed_on(table, classifier):
    """It has the model, and no plan, budgets or ids; what the twin leaves in is found."""
    X, y, _ = table
    ids = [f"{SECRET}{k}" for k in range(48)]
    classifier.fit(X, y, ids=ids)
    packed = pickle.dumps(classifier)
    as_numpy_writes_it = SECRET.encode("utf-32-le")
    assert SECRET.encode() not in packed
    assert as_numpy_writes_it not in packed
    assert as_numpy_writes_it in pickle.dumps(vars(classifier)["plan_"])
    again = pickle.loads(packed)
    assert np.array_equal(again.predict_proba(X), classifier.predict_proba(X))
    assert not hasattr(again, "plan_")
    with pytest.raises(AttributeError, match="stay out of pickles"):
        _ = again.spent_


@pytest.mark.parametrize("kind", ["classifier", "regressor", "encoder"])
def test_what_is_fitted_follows_no_arguments_that_are_changed_later(table, classifier, regressor, kind):
    """Neither by `set_params` nor in a dictionary that the caller has kept; a clone and the next fit do."""
    estimator = {"classifier": classifier, "regressor": regressor, "encoder": PublicEncoder()}[kind]
    X, labels, numbers = table
    frame = pd.DataFrame({"a": X[:, 0], "d": np.where(X[:, 1] > 0, "red", "blue")})
    given = {"bounds": {"a": [-1, 1]}, "categories": {"d": ["red", "blue"]}}
    seed = {} if kind == "encoder" else {"random_state": 0}

    def outputs(fitted):
        if kind == "encoder":
            return np.c_[fitted.transform(frame), [len(fitted.get_feature_names_out())] * 48].tolist()
        return (fitted.predict_proba if kind == "classifier" else fitted.predict)(frame).tolist()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pp.PrivyPurseWarning)
        estimator.set_params(**given, **seed).fit(frame, labels if kind == "classifier" else numbers)
        before = outputs(estimator)
        given["bounds"]["a"][1] = 50
        given["categories"]["d"].reverse()
        assert outputs(estimator) == before
        estimator.set_params(bounds=None, categories=None)
        assert outputs(estimator) == before
        if kind == "regressor":
            estimator.set_params(target_bounds=(0, 1))
            assert outputs(estimator) == before
            estimator.set_params(target_bounds=None)
        assert outputs(estimator) == outputs(pickle.loads(pickle.dumps(estimator))) == before
        assert vars(clone(estimator)).keys() == estimator.get_params().keys()
        again = {"bounds": {"a": (-1, 9)}, "categories": {"d": ["red"]}}
        estimator.set_params(**again, **({"target_bounds": (-12, 20)} if kind == "regressor" else {}))
        assert outputs(estimator.fit(frame, labels if kind == "classifier" else numbers)) != before


def test_frames_are_known_by_their_columns(table, classifier):
    X, y, _ = table
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["d"] = np.where(X[:, 1] > 0, "red", "blue")
    classifier.set_params(bounds={"a": (-1, 1)}, categories={"d": ["red", "green"]}).fit(frame, y)
    assert classifier.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert classifier.n_features_in_ == 4
    unseen = frame.assign(d="violet", a=np.nan)
    assert np.isfinite(classifier.decision_function(unseen)).all()
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(frame[["d", "c", "b", "a"]])


def test_without_scikit_learn_it_says_what_it_needs():
    code = (
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'sklearn':\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
        "try:\n"
        "    import privypurse.sklearn\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "privypurse.sklearn needs sklearn: pip install '.[sklearn]' in a clone\n"


def test_both_take_the_same_arguments_but_for_what_is_predicted():
    one, two = (set(inspect.signature(each).parameters) for each in (PrivateClassifier, PrivateRegressor))
    assert one ^ two == {"classes", "target_bounds"}


def test_consents_of_one_row_each_are_for_all_rows_of_a_person(table, classifier, monkeypatch):
    """And whoever has none of the rows is planned for: what is solved from budgets tells nothing of rows."""
    X, y, _ = table
    ids = np.array([f"p{row // 3}" for row in range(48)])
    granted = {f"p{number}": 1.0 + number % 3 for number in range(17)}  # p16 has no row
    consents = pp.Budgets(list(granted.values()), person=list(granted))
    _, plan = trained_on(monkeypatch, classifier.set_params(epsilon=None), X, y, budgets=consents, ids=ids)
    mine = plan.for_records(ids)
    assert mine.absent == 1
    assert mine.epsilon.tolist() == [granted[who] for who in ids]
    with pytest.raises(pp.InvalidInput, match="no budget: 'p99'"):
        classifier.fit(X, y, budgets=consents, ids=np.where(ids == "p0", "p99", ids))


def test_a_series_with_another_index_than_x_is_refused(table, classifier):
    """By place its ε would go to other people than by its index."""
    X, y, _ = table
    ids = pd.Index([f"p{row}" for row in range(48)])
    frame = pd.DataFrame(X, index=ids)
    granted = pd.Series(np.linspace(1, 3, 48), index=ids)
    classifier.set_params(epsilon=None)
    with pytest.raises(pp.InvalidInput, match="budgets has another index than X"):
        classifier.fit(frame, y, budgets=granted[::-1])
    with pytest.raises(pp.InvalidInput, match="ids has another index than X"):
        classifier.fit(frame, y, budgets=granted, ids=pd.Series(ids))
    classifier.fit(frame, y, budgets=granted[::-1].loc[frame.index], ids=ids)
    assert all(classifier.spent_[who] <= granted[who] for who in ids)


def test_training_is_told_whose_each_row_is_in_the_order_of_x(table, classifier, monkeypatch):
    X, y, _ = table
    ids = np.array([f"p{row * 7 % 16}" for row in range(48)])  # in no order
    seen = []
    monkeypatch.setattr(private_estimator, "train", lambda *given, person, **options: seen.append((given[2], person)))
    classifier.fit(X, y, ids=ids)
    (data, owners), *_ = seen
    assert list(owners) == ids.tolist()
    assert (data.tensors[0].numpy() == X.astype(np.float32)).all()


def test_after_a_fit_that_failed_there_is_no_model_of_the_one_before(table, classifier):
    """Its outputs would be read by the classes of the new one."""
    X, y, _ = table
    classifier.fit(X, y).set_params(classes=["yes", "perhaps"])
    with pytest.raises(pp.InvalidInput, match="not among classes"):
        classifier.fit(X, y)
    with pytest.raises(NotFittedError):
        classifier.predict(X)
    assert not hasattr(classifier, "spent_")
