"""Under a ledger every fit is charged, of clones too, within what people granted for life."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone

import privypurse as pp
from ledger_tools import new_ledger
from privypurse.sklearn import SpentBefore

IDS = np.array([f"C{k}" for k in range(48)])


@pytest.fixture
def ledger(tmp_path):
    made = new_ledger(tmp_path)
    made.join(IDS, made.rungs[-1].epsilon)
    return made


def test_clones_charge_the_same_purse_and_say_nothing_of_it(table, classifier, ledger):
    X, y, _ = table
    classifier.set_params(epsilon=ledger.rungs[-1].epsilon, at_most=0.2, ledger=ledger, purpose="a test")
    members, left = ledger.members(IDS), []
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpentBefore)
        for _ in range(2):
            left.append(ledger.balances(members).max())
            clone(classifier).fit(X, y, ids=IDS)
    assert left[0] > left[1] > ledger.balances(members).max()
    assert len(ledger.runs()) == 2
    assert not ledger.verify().problems
    assert clone(classifier).ledger is ledger


def test_a_fit_that_takes_all_that_is_left_says_so(table, classifier, ledger):
    X, y, _ = table
    classifier.set_params(epsilon=ledger.rungs[-1].epsilon, ledger=ledger)
    with pytest.warns(pp.PrivyPurseWarning, match="without at_most=: this fit takes all"):
        classifier.fit(X, y, ids=IDS)
    with pytest.raises(pp.InfeasibleBudget, match="used up"):
        clone(classifier).fit(X, y, ids=IDS)


def test_ids_are_needed(table, classifier, ledger):
    X, y, _ = table
    with pytest.raises(pp.InvalidInput, match="by id"):
        classifier.set_params(ledger=ledger).fit(X, y)


def test_a_pickle_without_its_ledger_does_not_fit_for_nothing(table, classifier, ledger):
    """As a search in several processes would make it: the twin, a ledger that is simply left out, trains unpaid."""
    X, y, _ = table
    classifier.set_params(ledger=ledger, at_most=0.2)
    again = pickle.loads(pickle.dumps(classifier))
    with pytest.raises(pp.InvalidInput, match="left behind"):
        again.fit(X, y, ids=IDS)
    assert len(ledger.runs()) == 0
    again.set_params(ledger=ledger).fit(X, y, ids=IDS)
    assert len(ledger.runs()) == 1
