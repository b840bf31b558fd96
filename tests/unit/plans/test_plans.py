"""Plans: their checks, what they say about everyone, and the file that gives them back bit for bit."""

import functools
import hashlib
import itertools
import json
import math

import numpy as np
import pytest
from scipy import optimize, special

import privypurse as pp
from ledger_tools import DELTA, new_ledger
from privypurse.errors import PrivyPurseWarning
from privypurse.plans import LevelTable
from reproductions.unsound.trusted_curve import TrustedCurve

EPSILON = [1.0, 2.0, 3.0, 1.0, 2.0, 1.0]


def make(epsilon=EPSILON, method="sample", **changes):
    """A small plan, by the quick accountant unless said otherwise. Plans do not change, so equal ones are shared."""
    shape = {"steps": 20, "batch_size": 2, "accountant": "rdp", **changes}
    return _made(tuple(epsilon), method, **{name: _hashable(value) for name, value in shape.items()})


@functools.cache
def _made(epsilon, method, delta=1e-5, person=None, **shape):
    return pp.plan(pp.Budgets(epsilon, delta=delta, person=person), method, **shape)


def _hashable(value):
    return tuple(value) if isinstance(value, list) else value


def gaussian_epsilon(sigma, steps, delta):
    """The exact ε of ``steps`` unsampled Gaussian releases (Balle & Wang 2018, Theorem 8)."""
    mu = math.sqrt(steps) / sigma

    def excess(epsilon):
        first = special.ndtr(mu / 2 - epsilon / mu)
        return first - math.exp(epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)) - delta

    return optimize.brentq(excess, 1e-9, 200.0, xtol=1e-12)


# ------------------------------------------------------------------------------------------------------ shapes


def test_a_shape_keeps_its_numbers_as_plain_ones():
    shape = pp.TrainingShape(steps=np.int64(5), batch_size=np.int32(7), clip_norm=np.float32(0.5), noise_multiplier=2)
    assert (shape.steps, shape.batch_size, shape.clip_norm, shape.noise_multiplier) == (5, 7, 0.5, 2.0)
    assert [type(value) for value in (shape.steps, shape.batch_size)] == [int, int]
    assert [type(value) for value in (shape.clip_norm, shape.noise_multiplier)] == [float, float]
    assert pp.TrainingShape(steps=5, batch_size=7).noise_multiplier is None
    assert pp.TrainingShape(steps=5, batch_size=7).with_noise(1.5).noise_multiplier == 1.5


@pytest.mark.parametrize("name", ["steps", "batch_size"])
@pytest.mark.parametrize("value", [0, -1, 2.0, 1.5, "3", None, True, math.nan, [3]])
def test_counts_must_be_whole_and_positive(name, value):
    with pytest.raises(pp.InvalidInput, match=rf"{name} must be a whole number of at least 1, not"):
        pp.TrainingShape(**{"steps": 1, "batch_size": 1, name: value})


@pytest.mark.parametrize("name", ["clip_norm", "noise_multiplier"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "3", True, [3.0]])
def test_scales_must_be_finite_and_positive(name, value):
    with pytest.raises(pp.InvalidInput, match=rf"{name} must be a finite number above 0, not"):
        pp.TrainingShape(**{"steps": 1, "batch_size": 1, name: value})


def test_a_clip_norm_cannot_be_left_open():
    with pytest.raises(pp.InvalidInput, match=r"clip_norm must be .*, not None"):
        pp.TrainingShape(steps=1, batch_size=1, clip_norm=None)


@pytest.mark.parametrize("name", ["steps", "batch_size", "clip_norm", "noise_multiplier"])
def test_planning_checks_its_shape(name):
    with pytest.raises(pp.InvalidInput, match=f"{name} must be .*, not -1"):
        make(**{name: -1})


# ----------------------------------------------------------------------------------------- plans built by hand


def by_hand(**changes):
    table = LevelTable(
        epsilon=[1.0, 2.0], delta=[1e-5, 1e-5], rate=[0.1, 0.2], clip_norm=[1.0, 1.0], capped=[False] * 2
    )
    arguments = {
        "method": "mine",
        "accountant": "rdp",
        "promise": "data",
        "shape": pp.TrainingShape(steps=3, batch_size=1, noise_multiplier=2.0),
        "levels": table,
        "level_of": [0, 1, 1],
    }
    return pp.Plan(**{**arguments, **changes})


def test_a_plan_by_hand():
    plan = by_hand(owner=[2, 0, 0, 1])
    assert plan.promise is pp.Promise.DATA
    assert plan.rates.tolist() == [0.2, 0.1, 0.1, 0.2]
    assert plan.expected_batch_size == pytest.approx(0.1 + 0.2 + 0.2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accountant": "guess"}, "accountant is 'guess'"),
        ({"shape": pp.TrainingShape(steps=3, batch_size=1)}, "noise multiplier"),
        ({"level_of": [0, 2]}, "level_of must lie in"),
        ({"level_of": [-1, 0]}, "level_of must lie in"),
        ({"level_of": []}, "level_of must be a non-empty"),
        ({"level_of": [0.0, 1.0]}, "whole numbers"),
        ({"owner": [0, 3]}, "owner must lie in"),
    ],
)
def test_a_plan_that_does_not_hold_together_is_refused(changes, words):
    with pytest.raises(pp.InvalidInput, match=words):
        by_hand(**changes)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("rate", [0.1, 1.1], "probability"),
        ("rate", [-0.1, 0.1], "probability"),
        ("rate", [math.nan, 0.1], "probability"),
        ("rate", [0.1], r"levels\.rate has shape"),
        ("epsilon", [1.0, 0.0], r"levels\.epsilon"),
        ("delta", [1e-5, math.inf], r"levels\.delta"),
        ("clip_norm", [1.0, -1.0], r"levels\.clip_norm"),
    ],
)
def test_a_level_table_checks_its_columns(column, value, words):
    good = {
        "epsilon": [1.0, 2.0],
        "delta": [1e-5] * 2,
        "rate": [0.1] * 2,
        "clip_norm": [1.0] * 2,
        "capped": [False] * 2,
    }
    assert len(LevelTable(**good)) == 2
    with pytest.raises(pp.InvalidInput, match=words):
        LevelTable(**{**good, column: value})


def test_an_unknown_promise_is_refused():
    with pytest.raises(ValueError, match="everything"):
        by_hand(promise="everything")


# -------------------------------------------------------------------------------------------- what a plan says


def test_properties_without_persons():
    plan = make(EPSILON, clip_norm=0.5)
    assert (plan.steps, plan.batch_size, plan.clip_norm, plan.method) == (20, 2, 0.5, "sample")
    assert (plan.people, plan.records, plan.owner) == (6, 6, None)
    assert plan.epsilon.tolist() == EPSILON
    assert plan.delta.tolist() == [1e-5] * 6
    assert plan.clip_norms.tolist() == [0.5] * 6
    assert plan.rates[0] == plan.rates[3] == plan.rates[5]
    assert plan.rates[0] < plan.rates[1] < plan.rates[2]
    assert plan.expected_batch_size == pytest.approx(math.fsum(plan.rates))
    assert not plan.capped.any()


def test_properties_with_persons_count_persons():
    person = ["zoe", "bo", "zoe", "zoe", "anna"]
    with_persons = make([3.0, 1.0, 3.0, 3.0, 2.0], person=person)
    without = make([3.0, 1.0, 2.0])
    assert (with_persons.people, with_persons.records) == (3, 5)
    # A person with three records is drawn, and counted, like one with a single record.
    assert with_persons.noise_multiplier == without.noise_multiplier
    assert with_persons.rates.tolist() == [without.rates[k] for k in (0, 1, 0, 0, 2)]
    assert with_persons.epsilon.tolist() == [3.0, 1.0, 3.0, 3.0, 2.0]
    assert with_persons.spent().tolist() == [without.spent()[k] for k in (0, 1, 0, 0, 2)]
    assert with_persons.expected_batch_size == without.expected_batch_size
    assert sum(row.people for row in with_persons.by_level()) == 3


def test_arrays_of_a_plan_are_read_only():
    plan = make()
    for name in ("rates", "clip_norms", "epsilon", "delta", "capped"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(plan, name)[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        plan.spent()[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        plan.levels.rate[0] = 1.0


def test_the_promise_is_the_budget_rounded_down_to_the_ladder():
    given = np.array([0.123456, 1.2345, 7.77])
    plan = make(given, steps=5, noise_multiplier=4.0)
    assert plan.epsilon.tolist() == [0.123, 1.23, 7.75]
    assert (plan.spent() <= plan.epsilon).all()


def test_several_deltas():
    plan = make([1.0, 1.0, 2.0], delta=[1e-5, 1e-7, 1e-5], batch_size=1)
    assert plan.delta.tolist() == [1e-5, 1e-7, 1e-5]
    assert plan.rates[1] < plan.rates[0] < plan.rates[2]
    plan.check(pp.Budgets([1.0, 1.0, 2.0], delta=[1e-5, 1e-7, 1e-5]))


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_spent_rises_with_steps_and_stays_within_the_promise(accountant):
    plan = make(accountant=accountant)
    course = np.array([plan.spent(steps) for steps in range(0, 21, 4)])
    assert (np.diff(course, axis=0) > 0).all()
    assert course[-1].tolist() == plan.spent().tolist() == plan.spent(plan.steps).tolist()
    assert (plan.spent() <= EPSILON).all()
    assert (plan.spent() >= 0.995 * np.array(EPSILON)).all()


def test_no_step_costs_nothing():
    assert make(accountant="pld").spent(0).tolist() == [0.0] * 6


def test_without_sampling_spent_is_the_exact_cost_of_gaussians():
    plan = make([1.5, 1.5], "uniform", steps=7, batch_size=2, accountant="pld")
    assert plan.rates.tolist() == [1.0, 1.0]
    for steps in (1, 3, 7):
        exact = gaussian_epsilon(plan.noise_multiplier, steps, 1e-5)
        assert exact <= plan.spent(steps)[0] <= exact * 1.002
    by_rdp = make([1.5, 1.5], "uniform", steps=7, batch_size=2, accountant="rdp")
    exact = gaussian_epsilon(by_rdp.noise_multiplier, 7, 1e-5)
    assert 0.8 * by_rdp.spent()[0] < exact <= by_rdp.spent()[0]


@pytest.mark.parametrize("steps", [-1, 21, 1.0, "3", True])
def test_steps_out_of_range_are_refused(steps):
    with pytest.raises(pp.InvalidInput, match=r"steps must be .*0 to 20, not"):
        make().spent(steps)


@pytest.mark.parametrize("method", ["sample", "scale", "uniform", "exclude", "curve-fit"])
def test_check_passes_for_the_budgets_that_a_plan_was_made_for(method):
    budgets = pp.Budgets(EPSILON)
    plan = pp.plan(budgets, method, steps=100, batch_size=1, noise_multiplier=2.0, accountant="rdp")
    plan.check(budgets)
    assert (plan.spent() <= budgets.epsilon).all()


def test_check_fails_for_stricter_budgets_and_names_the_worst():
    plan = make()
    with pytest.raises(pp.InvalidInput, match=r"1 records overspend; worst is record 4"):
        plan.check(pp.Budgets([1.0, 2.0, 3.0, 1.0, 1.9, 1.0]))
    with pytest.raises(pp.InvalidInput, match="6 records overspend"):
        plan.check(pp.Budgets(EPSILON, delta=1e-6))
    with pytest.raises(pp.InvalidInput, match="for 6 records, budgets hold 5"):
        plan.check(pp.Budgets(EPSILON[:5]))


def test_check_recomputes_and_so_catches_a_plan_that_overspends():
    honest = make()
    rates = np.minimum(honest.levels.rate * 1.05, 1.0)
    table = {name: getattr(honest.levels, name) for name in ("epsilon", "delta", "clip_norm", "capped")}
    greedy = by_hand(levels=LevelTable(rate=rates, **table), shape=honest.shape, level_of=honest.level_of)
    with pytest.raises(pp.InvalidInput, match="overspend"):
        greedy.check(pp.Budgets(EPSILON))


def test_who_cannot_use_up_their_budget_is_reported_as_capped():
    plan = make([1.0, 1e6, 1e6, 2.0], noise_multiplier=1.0, steps=10)
    assert plan.capped.tolist() == [False, True, True, False]
    assert plan.rates[1:3].tolist() == [1.0, 1.0]
    # Rate 1 is no sampling: Gaussian steps, whose exact cost is far below a million.
    assert gaussian_epsilon(1.0, 10, 1e-5) <= plan.spent()[1] < 30
    assert [row.capped for row in plan.by_level()] == [0, 0, 2]
    assert "2 people granted more" in plan.summary()
    assert "(capped)" in plan.summary()
    assert "capped" not in make().summary()


def test_the_table_has_at_most_so_many_lines_and_covers_everyone():
    epsilon = np.geomspace(0.5, 8.0, 60)
    plan = make(epsilon, batch_size=10, steps=5)
    assert len(plan.levels) == 60
    for most in (1, 5, 12, 60, 100):
        rows = plan.by_level(most)
        assert len(rows) <= most
        assert sum(row.people for row in rows) == 60
        assert rows[0].epsilon[0] == plan.epsilon.min()
        assert rows[-1].epsilon[1] == plan.epsilon.max()
        assert all(row.certified[1] <= row.epsilon[1] for row in rows)
        assert all(before.epsilon[1] < after.epsilon[0] for before, after in itertools.pairwise(rows))


# ----------------------------------------------------------------------------------------------------- summary


def test_the_summary_says_which_of_the_two_promises_is_made():
    solved, fixed = make(), make(noise_multiplier=2.0)
    assert solved.promise is pp.Promise.DATA
    assert "given the list of budgets" in solved.summary()
    assert "presence" not in solved.summary()
    assert fixed.promise is pp.Promise.PRESENCE
    assert "presence and declared ε" in fixed.summary()
    assert "given the list of budgets" not in fixed.summary()


@pytest.mark.parametrize("method", ["uniform", "scale", "exclude"])
def test_methods_that_look_at_everyone_protect_data_only_even_with_given_noise(method):
    assert make(method=method, noise_multiplier=2.0, batch_size=1).promise is pp.Promise.DATA


def test_the_summary_names_people_noise_steps_accountant_and_levels():
    plan = make(steps=20, batch_size=2, clip_norm=0.25, person=["a", "b", "c", "d", "b", "a"])
    lines = plan.summary().splitlines()
    text = plan.summary()
    for word in (
        "sample",
        "4 people",
        "6 records",
        "steps: 20",
        f"{plan.noise_multiplier:.5g}",
        "0.25",
        "rdp",
        "1e-05",
    ):
        assert word in text
    (header,) = (line for line in lines if "ε certified" in line)
    assert header.split()[0] == "people"
    rows = {line.split()[1]: line.split() for line in lines if line.strip()[:1].isdigit()}
    assert {level: int(row[0]) for level, row in rows.items()} == {"1": 2, "2": 1, "3": 1}
    for level, row in rows.items():
        assert float(row[2]) <= float(level)
        assert float(row[3]) == pytest.approx(plan.rates[EPSILON.index(float(level))], rel=1e-3)


@pytest.mark.parametrize("epsilon", [4e-5, 1.0, 2.34567])
def test_the_summary_shows_no_less_than_what_is_certified(epsilon):
    plan = make([epsilon] * 50, noise_multiplier=2.0, steps=1, delta=1.23456e-5, accountant="pld")
    *_, row = (line.split() for line in plan.summary().splitlines() if line.strip()[:1].isdigit())
    assert 0 < plan.spent()[0] <= float(row[2]) <= plan.spent()[0] * 1.001
    assert "δ 1.235e-05" in plan.summary()


def test_the_summary_warns_of_a_large_delta():
    with pytest.warns(PrivyPurseWarning, match=r"δ = 0\.5 is not below 1/6"):
        large = make(delta=0.5)
    assert "warning: δ = 0.5 is not below 1/6" in large.summary()
    with pytest.warns(PrivyPurseWarning, match=r"δ = 0\.25 is not below 1/4"):  # at 1/n exactly
        assert "warning: δ = 0.25 is not below 1/4" in make([1.0] * 4, delta=0.25).summary()
    assert "warning" not in make().summary()


# ------------------------------------------------------------------------------------------------------- files


def assert_same_plan(one, other):
    assert (one.method, one.accountant, one.promise, one.shape, one.notes) == (
        other.method,
        other.accountant,
        other.promise,
        other.shape,
        other.notes,
    )
    for name in ("epsilon", "delta", "rate", "clip_norm", "capped"):
        mine, theirs = getattr(one.levels, name), getattr(other.levels, name)
        assert mine.dtype == theirs.dtype
        assert mine.tobytes() == theirs.tobytes()
    assert one.level_of.dtype == other.level_of.dtype
    assert np.array_equal(one.level_of, other.level_of)
    assert (one.owner is None) == (other.owner is None)
    for name in ("rates", "clip_norms", "epsilon", "delta", "capped"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    assert one.spent().tobytes() == other.spent().tobytes()


SAVED = {
    "solved": lambda: make([0.7, 1.1, 2.3, 1.1]),
    "fixed noise": lambda: make([0.7, 1.1, 1e6], noise_multiplier=1.0 / 3.0 + 1),
    "persons": lambda: make([3.0, 1.0, 3.0], person=["z", "b", "z"], batch_size=1),
    "scale": lambda: make(method="scale", clip_norm=0.1),
    "exclude": lambda: make(method="exclude", batch_size=1),
    "as published": lambda: make(method=TrustedCurve(), noise_multiplier=1.0, steps=100),
    "many levels": lambda: make(np.geomspace(0.5, 8.0, 300), steps=3, batch_size=30),
    "pld": lambda: make(accountant="pld"),
}


@pytest.mark.parametrize("case", SAVED)
def test_a_plan_comes_back_bit_for_bit(tmp_path, case):
    plan = SAVED[case]()
    plan.save(tmp_path / "first.json")
    loaded = pp.Plan.load(str(tmp_path / "first.json"))
    assert_same_plan(plan, loaded)
    loaded.save(tmp_path / "second.json")
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "second.json").read_bytes()


def test_the_file_is_json_that_states_its_promise(tmp_path):
    make().save(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert content["format"] == "privypurse-plan"
    assert content["promise"]["protects"] == "data"
    assert "given the list of budgets" in content["promise"]["text"]
    assert content["levels"]["epsilon"] == [1.0, 2.0, 3.0]


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "plan.json"
    make(person=["a", "b", "c", "d", "b", "a"]).save(path)
    return path


def rewritten(path, change, *, checksum=False):
    """The file after ``change`` of its content; with ``checksum`` also the checksum made to fit again."""
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    if checksum:
        content.pop("sha256", None)
        content["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_rewriting_without_a_change_is_no_damage(saved):
    before = pp.Plan.load(saved)
    assert_same_plan(before, pp.Plan.load(rewritten(saved, lambda content: None)))
    assert_same_plan(before, pp.Plan.load(rewritten(saved, lambda content: None, checksum=True)))


def flipped_rate(content):
    content["levels"]["rate"][0] = float(np.nextafter(content["levels"]["rate"][0], 1))


ALTERED = {
    "one rate by one bit": flipped_rate,
    "noise": lambda content: content["shape"].update(noise_multiplier=0.1),
    "steps": lambda content: content["shape"].update(steps=19),
    "promise": lambda content: content["promise"].update(protects="presence"),
    "accountant": lambda content: content.update(accountant="pld"),
    "epsilon": lambda content: content["levels"]["epsilon"].__setitem__(0, 0.5),
    "who is where": lambda content: content["level_of"].update(content["owner"]),
    "no persons": lambda content: content.update(owner=None),
    "no checksum": lambda content: content.pop("sha256"),
    "something more": lambda content: content.update(extra=1),
}


@pytest.mark.parametrize("case", ALTERED)
def test_an_altered_file_is_refused(saved, case):
    with pytest.raises(pp.InvalidInput, match=r"plan\.json was altered or damaged"):
        pp.Plan.load(rewritten(saved, ALTERED[case]))


INCONSISTENT = {
    "no probability": (lambda content: content["levels"]["rate"].__setitem__(0, 1.5), "probability"),
    "a level too many": (lambda content: content["levels"]["rate"].append(0.5), "levels.rate"),
    "unknown accountant": (lambda content: content.update(accountant="guess"), "accountant is 'guess'"),
    "no noise": (lambda content: content["shape"].update(noise_multiplier=None), "noise multiplier"),
    "part missing": (lambda content: content.pop("levels"), "cannot be read"),
    "unknown promise": (lambda content: content["promise"].update(protects="all"), "cannot be read"),
    "wrong size": (lambda content: content["level_of"].update(size=5), "cannot be read"),
    "no base64": (lambda content: content["level_of"].update(zlib="!"), "cannot be read"),
    "no zlib": (lambda content: content["level_of"].update(zlib="AAAA"), "cannot be read"),
    "odd type": (lambda content: content["level_of"].update(dtype="|O"), "cannot be read"),
}


@pytest.mark.parametrize("case", INCONSISTENT)
def test_a_file_that_does_not_hold_together_is_refused_whatever_its_checksum(saved, case):
    change, words = INCONSISTENT[case]
    with pytest.raises(pp.InvalidInput, match=words):
        pp.Plan.load(rewritten(saved, change, checksum=True))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(saved, share):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(pp.InvalidInput, match=r"plan\.json (is not JSON|is not a plan)"):
        pp.Plan.load(saved)


@pytest.mark.parametrize("version", [0, 4, "1", None])
def test_another_version_is_refused(saved, version):
    with pytest.raises(pp.InvalidInput, match=r"version .* reads versions 1 to 3"):
        pp.Plan.load(rewritten(saved, lambda content: content.update(version=version), checksum=True))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"epsilon\n1\n", "is not JSON"),
        (b"[1, 2]", "is not a plan"),
        (b"{}", "is not a plan"),
        (b'"privypurse-plan"', "is not a plan"),
        (b"\x00\xff\xfe\x80", "is not a plan: it is not text"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path, content, words):
    (tmp_path / "other.json").write_bytes(content)
    with pytest.raises(pp.InvalidInput, match=rf"other\.json {words}"):
        pp.Plan.load(tmp_path / "other.json")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(pp.InvalidInput, match="does not exist"):
        pp.Plan.load(tmp_path / "nowhere.json")


@pytest.mark.slow
def test_two_hundred_thousand_different_budgets_make_a_compact_file(tmp_path):
    epsilon = np.exp(np.random.default_rng(3).uniform(np.log(0.1), np.log(10.0), 200_000))
    assert np.unique(epsilon).size == epsilon.size
    plan = make(epsilon, steps=200, batch_size=8192, delta=1e-6)
    plan.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").stat().st_size < 500_000
    loaded = pp.Plan.load(tmp_path / "plan.json")
    assert loaded.rates.tobytes() == plan.rates.tobytes()
    assert (loaded.spent() <= epsilon).all()
    assert (loaded.epsilon > 0.99 * epsilon).all()


def test_what_was_computed_for_an_audits_copy_is_not_told_of_the_plan(tmp_path):
    """Without its ledger a copy for made-up records may have another filter, and so another δ for its fixed steps."""
    ledger = new_ledger(tmp_path)
    ids = [f"p{number}" for number in range(20)]
    ledger.join(ids, 2.0)
    budgets = pp.Budgets(np.full(20, 1.0), delta=DELTA, person=ids)
    shape = {"noise_multiplier": 60.0, "steps": 100, "batch_size": 20, "extra_steps": 50}
    made = pp.plan(budgets, ledger=ledger, at_most=1.0, **shape)
    assert set(made.levels.rate) <= {0.0, 1.0}
    made.save(tmp_path / "plan.json")
    first, second = (pp.Plan.load(tmp_path / "plan.json") for _ in range(2))
    fresh = first.spent_by_level()
    copy = second.for_nobody(np.zeros(5, int))
    at_another_delta = copy.spent_by_level()
    assert (copy.fixed_delta > second.fixed_delta).all()
    assert (second.spent_by_level() == fresh).all()
    assert (fresh > at_another_delta).all()
