"""Federations and answers are looked at again: rates and noise are priced anew, whatever the accounts say."""

import json
import math
from dataclasses import replace

import pytest

import privypurse as pp
from privypurse.accounting import PLD, SampledGaussian, gdp
from privypurse.federated.terms import Terms
from privypurse.runs.folder import RunFolder
from privypurse.runs.verification.findings import Verdict

# Everybody is in every step: so the exact ε of two rounds, and of three, is that of one Gaussian.
TERMS = Terms(
    rounds=3, local_steps=4, noise_multiplier=8.0, batch_size=8, learning_rate=0.1, clients=1, most_joined=3
)
EXACT = [float(gdp.epsilon(math.sqrt(rounds * 4) / 8.0, 1e-5)) for rounds in (2, 3)]
SPENT, MOST = PLD().epsilons([SampledGaussian(1.0, 8.0, 8), SampledGaussian(1.0, 8.0, 12)], 1e-5).tolist()


def wrong(folder):
    return {each.what for each in pp.verify(folder).of(Verdict.WRONG)}


def federation(path, terms=TERMS, **changed):
    account = {"joined": 2, "granted": [1.001 * MOST] * 3, "rates": [1.0] * 3, "spent": [SPENT] * 3} | changed
    folder = RunFolder.begin(path, "federate")
    folder.add_json("terms.json", terms.to_json(), public=True)
    folder.add_json("accounts.json", {"north": account})
    return path


def test_rounds_that_were_joined_cost_what_a_gaussian_of_as_many_steps_does(tmp_path):
    assert all(exact <= ours <= 1.001 * exact for exact, ours in zip(EXACT, (SPENT, MOST), strict=True))
    found = pp.verify(federation(tmp_path))
    assert found.sound, str(found)
    assert {each.what for each in found.of(Verdict.FITS)} == {"files", "grants", "certified ε", "spending"}
    assert "nothing is promised" in str(found)


@pytest.mark.parametrize(
    ("changed", "seen"),
    [
        ({"spent": [SPENT, 0.9 * SPENT, SPENT]}, {"spending"}),
        ({"joined": 1}, {"spending"}),
        ({"joined": 4}, {"spending"}),
        ({"granted": [0.999 * MOST] * 3}, {"certified ε"}),
        ({"granted": [0.999 * SPENT] * 3}, {"grants", "certified ε"}),
        ({"rates": [1.0, 0.5, 1.0]}, {"spending"}),
    ],
)
def test_an_account_that_was_edited_does_not_fit_the_terms(tmp_path, changed, seen):
    assert wrong(federation(tmp_path, **changed)) == seen


def test_terms_that_were_edited_do_not_fit_the_accounts(tmp_path):
    assert wrong(federation(tmp_path, replace(TERMS, noise_multiplier=7.0))) == {"certified ε", "spending"}


def test_a_federation_and_an_answer_do_not_say_that_a_ledger_charges(tmp_path):
    federation(tmp_path / "federation")
    answered(tmp_path / "answer", {"question": "count"})
    for folder in (tmp_path / "federation", tmp_path / "answer"):
        assert pp.verify(folder).sound
        for name in ("run.json", "public.json"):
            listing = json.loads((folder / name).read_text(encoding="utf-8"))
            (folder / name).write_text(json.dumps({**listing, "charged": "Everybody is."}), encoding="utf-8")
        assert wrong(folder) == {"facts"}


def test_accounts_without_rates_are_said_to_be_unverifiable(tmp_path):
    folder = RunFolder.begin(tmp_path, "federate")
    folder.add_json("terms.json", TERMS.to_json(), public=True)
    folder.add_json("accounts.json", {"north": {"granted": [1.0], "spent": [0.5]}})
    found = pp.verify(tmp_path)
    assert found.sound
    assert "certified ε" in {each.what for each in found.of(Verdict.OPEN)}


def answered(path, question, noise=20.0, most=1.0, **cost):
    """Noise on a sum that one person moves by ``most``: Gaussian DP with μ = most/noise."""
    said = {"amount": (most / noise) ** 2, "currency": "gdp", "delta": 1e-5}
    said["epsilon"] = float(gdp.epsilon(most / noise, 1e-5))
    folder = RunFolder.begin(path, "query")
    folder.add_json(
        "answer.json", {"value": 3.0, "noise": noise, "released": [3.0], "cost": said | cost}, public=True
    )
    folder.add_json("question.json", question)
    return path


@pytest.mark.parametrize(
    ("question", "most"),
    [
        ({"question": "count"}, 1.0),
        ({"question": "histogram", "column": "age"}, 1.0),
        ({"question": "mean", "column": "pay", "lower": 0, "upper": 10}, math.sqrt(2)),
        ({"question": "sum", "column": "pay", "lower": -7, "upper": 4}, 7.0),
    ],
)
def test_an_answer_costs_what_its_noise_does(tmp_path, question, most):
    assert pp.verify(answered(tmp_path / "right", question, most=most)).sound
    assert wrong(answered(tmp_path / "less", question, most=0.9 * most)) == {"noise"}
    cheaper = {"epsilon": 0.9 * float(gdp.epsilon(most / 20, 1e-5))}
    assert wrong(answered(tmp_path / "cheaper", question, most=most, **cheaper)) == {"cost"}
