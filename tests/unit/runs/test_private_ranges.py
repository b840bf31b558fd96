"""Ends and categories of a configuration, for a share of everybody's ε: what is found, what it costs and leaves."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import privypurse as pp
from ledger_tools import DELTA, EPSILONS, charged, copied, new_ledger
from privypurse.budgets.split import Split, split
from privypurse.datasets.encoding import Categories, Range
from privypurse.queries import private_constants
from privypurse.queries.noise import Noise
from privypurse.queries.private_constants import PrivateConstants
from privypurse.runs import planning, private_ranges
from privypurse.runs.column_sections import encoding
from privypurse.runs.config import parse_config
from privypurse.runs.folder import RunFolder
from privypurse.runs.held_out import HeldOut
from privypurse.runs.plan_facts import who_is_charged
from privypurse.runs.planning import granted, plan_of
from privypurse.runs.private_ranges import with_ranges
from privypurse.runs.training_run import train_by

pytestmark = pytest.mark.filterwarnings("ignore:.*seed:privypurse.errors.PrivyPurseWarning")
N = 400
IDS = [f"C{place:04d}" for place in range(N)]
GRANTED = np.where(np.arange(N) % 3, 20.0, 40.0)
CONFIG = """
[data]
table = "people.csv"
label = "left"
classes = ["no", "yes"]
person = "id"
[data.features]
pay = { range = "estimated", within = [0, 1e7] }
town = { values = "estimated" }
age = { low = 0, high = 100 }
[private_ranges]
share = 0.25
[budgets]
epsilon = "epsilon"
[plan]
steps = 4
batch_size = 40
accountant = "rdp"
[model]
kind = "mlp"
hidden = []
[optimizer]
name = "SGD"
lr = 0.1
[training]
device = "cpu"
"""


@pytest.fixture(autouse=True)
def people(tmp_path, monkeypatch):
    """Two rows each: pay between 20,000 and 60,000, two towns of many and one of a single person; noise by a seed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(private_constants, "Noise", lambda seed: Noise(3))
    write(GRANTED)


def write(granted, table="people.csv"):
    random = np.random.default_rng(0)
    rows = ["id,epsilon,pay,town,age,left"]
    for place, (who, epsilon) in enumerate(zip(IDS, granted, strict=True)):
        town = "Atlantis" if place == 7 else ("Oslo", "Rome")[place % 2]
        pay = random.integers(20_000, 60_000)
        rows += [f"{who},{epsilon:g},{pay if place % 9 else ''},{town},{place % 90},{('no', 'yes')[place % 2]}"] * 2
    Path(table).write_text("\n".join(rows) + "\n", encoding="utf-8")


def edited(*changes):
    text = CONFIG
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_config(text)


def test_a_run_finds_what_many_have_and_says_what_it_cost():
    done = train_by(edited())
    folder = RunFolder.open("privypurse-run")
    assert folder.files["ranges.json"].public
    said = json.loads(Path("privypurse-run/ranges.json").read_text("utf-8"))
    assert said["share"] == 0.25
    assert said["categories"] == {"town": ["Oslo", "Rome"]}
    low, high = said["ranges"]["pay"]
    assert 5_000 <= low <= 25_000
    assert 55_000 <= high <= 600_000
    columns = pp.load("privypurse-run").encoder.columns
    assert columns == {"pay": Range(low, high), "town": Categories(("Oslo", "Rome")), "age": Range(0, 100)}
    facts = json.loads(Path("privypurse-run/facts.json").read_text("utf-8"))
    assert facts["private_ranges"]["share"] == 0.25
    assert done.plan.levels.epsilon.tolist() == [15.0, 30.0]
    assert pp.verify("privypurse-run", table="people.csv").sound


@pytest.mark.parametrize(
    ("edit", "seen"),
    [
        (lambda told: told.update(people=[7]), {"public files"}),
        (lambda told: told.update(about="Found by hand."), {"public files"}),
        (lambda told: told.update(share=0.01), {"what is shown"}),
        (lambda told: told["ranges"].update(age=[0.0, 90.0]), {"what is shown"}),
        (lambda told: told["ranges"].update(pay=[20_017.0, 59_998.0]), {"what is shown", "configuration"}),
    ],
    ids=["more", "words", "share", "column", "ends of the rows"],
)
def test_ranges_that_nobody_was_asked_for_do_not_verify(edit, seen):
    train_by(edited())
    folder = RunFolder.open("privypurse-run")
    told = json.loads(Path("privypurse-run/ranges.json").read_text("utf-8"))
    edit(told)
    folder.add_json("ranges.json", told, public=True)
    assert {each.what for each in pp.verify("privypurse-run").of("does not fit")} == seen


def overdrawn(config):
    """Whether the question's purses and the plan together take more than somebody granted."""
    budgets, _ = granted(config.budgets, config.data.table)
    parts = split(budgets, config.private_ranges.share)
    plan = plan_of(config, 2 * N)
    one, two = parts.first, plan.for_records(budgets.person)
    epsilons = zip(one.epsilon.tolist(), two.spent().tolist(), budgets.epsilon.tolist(), strict=True)
    deltas = zip(one.delta.tolist(), two.delta.tolist(), budgets.delta.tolist(), strict=True)
    return any(Fraction(a) + Fraction(b) > Fraction(c) for pairs in (epsilons, deltas) for a, b, c in pairs)


def test_question_and_training_together_keep_what_each_person_granted(monkeypatch):
    config = edited()
    assert not overdrawn(config)
    # The twin: training takes all, as if nobody had been asked before.
    monkeypatch.setattr(planning, "split", lambda budgets, share, at_most: Split(budgets, budgets, at_most))
    assert overdrawn(config)


def test_a_run_that_trains_with_all_of_it_does_not_verify(monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(planning, "split", lambda budgets, share, at_most: Split(budgets, budgets, at_most))
        train_by(edited())
    [found] = pp.verify("privypurse-run", table="people.csv").of("does not fit")
    assert found.what == "grants"


def test_the_question_is_paid_out_of_the_share_alone(monkeypatch):
    made = []
    by_share = PrivateConstants.by_share
    monkeypatch.setattr(
        PrivateConstants, "by_share", lambda part, **how: made.append((part, by_share(part, **how))) or made[-1][1]
    )
    with_ranges(edited(), None)
    [(part, asked)] = made
    assert part.people == N
    assert (part.epsilon <= 0.25 * np.repeat(GRANTED, 2)).all()
    assert (asked.purses.spent <= asked.purses.total).all()
    assert (asked.purses.spent > 0).all()


def test_everybody_pays_by_their_own_consent_in_whatever_order_these_stand(monkeypatch):
    """Consents in a file of their own, from the last person to the first, and one of somebody without a row."""
    made = []
    by_share = PrivateConstants.by_share
    monkeypatch.setattr(
        PrivateConstants, "by_share", lambda part, **how: made.append((part, by_share(part, **how))) or made[-1][1]
    )
    lines = [f"{who},{grant:g}" for who, grant in zip(IDS, GRANTED, strict=True)]
    Path("consents.csv").write_text("\n".join(["id,epsilon", "nobody,1", *lines[::-1]]) + "\n", encoding="utf-8")
    with_ranges(edited(('epsilon = "epsilon"', 'epsilon = "epsilon"\ntable = "consents.csv"')), None)
    [(part, asked)] = made
    names = part.people_ids().tolist()
    weight, spent = (dict(zip(names, each, strict=True)) for each in (asked.weights, asked.purses.spent))
    for place, who in enumerate(IDS):
        said = (place % 9 > 0) + 1  # pay, where there is any, and town
        assert spent[who] == pytest.approx(said * weight[who] ** 2, rel=1e-6)
    assert spent["nobody"] == 0


def test_who_is_held_out_is_neither_asked_nor_charged(monkeypatch):
    seen = []
    common = PrivateConstants.common
    monkeypatch.setattr(
        PrivateConstants, "common", lambda self, words, size: seen.append(words) or common(self, words, size)
    )
    config = edited(('person = "id"', 'person = "id"\nheld_out = { share = 0.3 }'))
    with_ranges(config, None)
    stay = ~config.data.held_out.of(np.array(IDS))
    assert seen[0].size == 2 * stay.sum() < 2 * N


def test_a_value_that_only_somebody_held_out_has_is_not_even_looked_at(monkeypatch):
    by_share = PrivateConstants.by_share

    def telling_everything(part, **how):
        made = by_share(part, **how)
        made.threshold = -100.0
        return made

    monkeypatch.setattr(PrivateConstants, "by_share", telling_everything)
    seed = next(seed for seed in range(99) if HeldOut(0.3, seed).of(np.array(["C0007"]))[0])
    for more, towns in (
        ("", ("Atlantis", "Oslo", "Rome")),
        (f"held_out = {{ share = 0.3, seed = {seed} }}", ("Oslo", "Rome")),
    ):
        config = edited(('person = "id"', f'person = "id"\n{more}'))
        assert with_ranges(config, None)[1].categories["town"] == towns


def test_a_run_that_goes_on_asks_nobody_again(monkeypatch):
    config = edited(('device = "cpu"', 'device = "cpu"\ncheckpoint = "kept"'))
    first, told = with_ranges(config, None)
    monkeypatch.setattr(private_ranges, "_asked", lambda *_: pytest.fail("asked a second time"))
    again, same = with_ranges(config, None)
    assert (again.data, same) == (first.data, told)
    other = replace(config, private_ranges=replace(config.private_ranges, share=0.1))
    with pytest.raises(pp.InvalidInput, match=r"another share.*another checkpoint folder"):
        with_ranges(other, None)
    Path("kept/ranges.json").write_text("{}")
    with pytest.raises(pp.InvalidInput, match="cannot be read"):
        with_ranges(config, None)


def test_what_is_wrong_anyway_is_refused_before_anybody_pays(monkeypatch):
    monkeypatch.setattr(private_ranges, "_asked", lambda *_: pytest.fail("asked, and paid for nothing"))
    with pytest.raises(pp.InvalidInput, match="SGD does not take"):
        train_by(edited(("lr = 0.1", "lr = -1.0")))
    Path("privypurse-run").mkdir()
    Path("privypurse-run/model.pt").touch()
    with pytest.raises(pp.InvalidInput, match=r"already holds the model.pt"):
        train_by(edited())


def test_a_category_of_which_nothing_stands_out_is_left_out():
    config = edited(("share = 0.25", "share = 0.0001"))
    settled, told = with_ranges(config, None)
    assert told.categories == {"town": ()}
    assert told.ranges == {"pay": (0, 1e7)}
    assert list(settled.data.features) == ["pay", "age"]
    assert "left out" in told.in_words()[1]
    alone = edited(("share = 0.25", "share = 0.0001"), ("age = { low = 0, high = 100 }\n", ""))
    alone = replace(alone, data=replace(alone.data, features={"town": alone.data.features["town"]}))
    with pytest.raises(pp.InvalidInput, match="raise share under"):
        with_ranges(alone, None)


def gaussian_delta(mu, epsilon):
    """Balle & Wang (2018, arXiv 1805.06530), Theorem 8, plainly."""
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def under_ledger(at_most="\nat_most = 0.4"):
    return edited(
        ('town = { values = "estimated" }\n', ""), ("steps = 4", f"steps = 4{at_most}\nnoise_multiplier = 3.0")
    )


def test_under_a_ledger_question_and_training_are_entries_of_their_own():
    grants = np.array(EPSILONS)[np.arange(N) % 3]
    write(grants)
    ledger = new_ledger(Path.cwd())
    ledger.join(np.array(IDS), grants)
    config = under_ledger()
    other = copied(ledger, Path("other.db").absolute())
    with_ranges(config, other)
    asked = charged(other, np.array(IDS))
    silent = np.arange(N) % 9 == 0  # no cell says what they earn
    assert (asked[silent] == 0).all()
    # μ²/2 of Gaussian DP at order 1, α times that at α: what (0.1, 2.5e-6) holds, of one column.
    mu = brentq(lambda each: gaussian_delta(each, 0.25 * 0.4) - 0.25 * DELTA, 1e-3, 1)
    orders = np.array([rung.order for rung in ledger.rungs])
    ratio = 2 * asked[~silent] / orders
    assert ratio == pytest.approx(mu**2, rel=0.01)
    done = train_by(config, ledger=ledger)
    assert done.plan.public_epsilon <= 0.75 * 0.4 * (1 + 1e-12)
    assert (charged(ledger, np.array(IDS)) > asked).all()
    facts = json.loads(Path("privypurse-run/facts.json").read_text("utf-8"))
    assert facts["at_most"] == 0.4  # of question and training
    assert pp.verify("privypurse-run", ledger=ledger).sound
    for name in ("run.json", "public.json"):
        listing = json.loads(Path("privypurse-run", name).read_text("utf-8"))
        Path("privypurse-run", name).write_text(json.dumps({**listing, "charged": who_is_charged(False)}), "utf-8")
    (found,) = pp.verify("privypurse-run", ledger=ledger).of("does not fit")
    assert all(name in found.said for name in ("plan.json", "facts.json", "ledger.json"))


def test_what_a_ledger_cannot_charge_is_refused():
    ledger = new_ledger(Path.cwd())
    grants = np.array(EPSILONS)[np.arange(N) % 3]
    write(grants)
    ledger.join(np.array(IDS), grants)
    with pytest.raises(pp.InvalidInput, match="a part of δ that a ledger cannot charge"):
        with_ranges(edited(("steps = 4", "steps = 4\nat_most = 0.4")), ledger)
    with pytest.raises(pp.InvalidInput, match=r"give at_most under \[plan\]"):
        with_ranges(under_ledger(""), ledger)
    assert (charged(ledger, np.array(IDS)) == 0).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("[private_ranges]\nshare = 0.25\n", "")], "pay is to be estimated, which people pay for"),
        ([("share = 0.25", "share = 0.7")], "share must be"),
        ([("within = [0, 1e7]", "within = [5, 5]")], "the lower one first"),
        ([(", within = [0, 1e7] }", " }")], "needs within, two public ends"),
        ([('{ values = "estimated" }', '{ values = "estimated", kind = "date" }')], "kind is 'date'"),
        ([('classes = ["no", "yes"]', 'range = { range = "estimated", within = [0, 1] }')], "must be a range of"),
        (
            [
                ('pay = { range = "estimated", within = [0, 1e7] }\n', ""),
                ('town = { values = "estimated" }\n', ""),
            ],
            "finds nothing to estimate",
        ),
        (
            [
                ('[plan]\nsteps = 4\nbatch_size = 40\naccountant = "rdp"\n', ""),
                ("\n[data]\n", 'plan = "p.json"\n[data]\n'),
            ],
            "was made before",
        ),
    ],
)
def test_what_cannot_be_meant_is_named(changes, said):
    with pytest.raises(pp.InvalidInput, match=said):
        edited(*changes)


def test_a_word_that_is_misspelt_is_named():
    with pytest.raises(
        pp.InvalidInput, match="range is 'estimate'; the one word that can stand there is \"estimated\""
    ):
        encoding({"range": "estimate", "within": [0, 10]}, "[data.features] pay")
