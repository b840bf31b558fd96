"""privypurse audit: what it says, what it writes, and its exit code."""

import numpy as np
import pytest

import command_line
import privypurse as pp
from privypurse.audit.claims import not_attacked
from privypurse.audit.result import AuditResult
from privypurse.audit.subject import made_up_features, made_up_targets, some_levels, stand_in, subject_of
from privypurse.datasets.encoder import Encoder
from privypurse.datasets.encoding import Categories, Flag, Range
from privypurse.datasets.targets import Classes, Flags, Number
from privypurse.errors import InvalidInput
from privypurse.report.sections import correctness
from privypurse.training import setup
from privypurse.training.grid_noise import GridNoise

CONFIG = """
[data]
table = "people.csv"
label = "left"
classes = ["no", "yes"]
features = { age = { low = 0, high = 100 }, town = ["Oslo", "Rome"] }

[budgets]
epsilon = "epsilon"
delta = 1e-5

[plan]
method = "uniform"
steps = 4
batch_size = 30
accountant = "rdp"

[model]
kind = "mlp"
hidden = [4]

[optimizer]
name = "SGD"
lr = 0.1
"""


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    budgets = pp.Budgets([4.0] * 60, delta=1e-5)
    pp.plan(budgets, "uniform", steps=4, batch_size=60, accountant="rdp").save(path)
    return path


def test_a_sound_plan_is_cleared(plan_file, tmp_path, capsys):
    out = command_line.done(capsys, f"audit {plan_file} --canaries 300 -o {tmp_path / 'audit'}")
    first = out.splitlines()[0]
    assert "one training of 4 steps with 300 canaries" in first
    assert "seconds" in first
    assert "cleared" in out
    found = AuditResult.load(tmp_path / "audit")
    assert found.groups[0].canaries == 300
    assert found.edition is None


def test_fewer_than_no_others_are_wrong_input(plan_file, tmp_path, capsys):
    code, _, error = command_line.run(capsys, f"audit {plan_file} --others -5 -o {tmp_path / 'audit'}")
    assert code == 2
    assert "--others must be a whole number of at least 1, not -5" in error


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--yes", "--yes is for --real"),
        ("--ledger sqlite:///purses.db", "--ledger is for --real"),
        ("--runs 500", "--runs is for --attack small-runs, not canaries"),
        ("--attack small-runs --canaries 300", "--canaries is for --attack canaries, not small-runs"),
        ("--attack loss --verdict guesses", "--verdict is for --attack canaries, not loss"),
        ("--real --yes --others 5", "--others is 5 beside --real"),
        ("--attack lira --models 7", "--models is 7; give an even number"),
        ("--device tpu", "device 'tpu' cannot be used (there is none of that name)"),
    ],
)
def test_flags_that_do_nothing_are_refused_before_anything_is_timed(plan_file, tmp_path, capsys, flags, said):
    code, out, error = command_line.run(capsys, f"audit {plan_file} {flags} -o {tmp_path / 'audit'}")
    assert (code, out) == (2, "")
    assert said in error
    assert len(error) < 300


def test_what_is_no_plan_is_named_with_what_to_name_instead(tmp_path, capsys):
    (tmp_path / "people.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    for name in ("people.csv", "nosuch"):
        code, _, error = command_line.run(capsys, f"audit {tmp_path / name}")
        assert code == 2
        assert str(tmp_path / name) in error
        assert "the folder of a run" in error
    with pytest.raises(InvalidInput, match=r"people\.csv: this is no audit\.json"):
        AuditResult.load(tmp_path / "people.csv")


@pytest.mark.slow
def test_levels_that_are_left_out_are_named(tmp_path, capsys):
    plan = pp.plan(pp.Budgets([1.0, 2.0, 4.0] * 20, delta=1e-5), "uniform", steps=4, batch_size=20, accountant="rdp")
    plan.save(tmp_path / "plan.json")
    line = f"audit {tmp_path / 'plan.json'} --canaries 50 --groups 2 -o {tmp_path / 'audit'}"
    assert "Not attacked: ε = 2." in command_line.done(capsys, line)
    found = AuditResult.load(tmp_path / "audit")
    assert found.not_attacked == ("ε = 2",)
    assert ("Not attacked", "ε = 2") in correctness(found).facts
    assert not_attacked(plan, np.array([0, 1, 2])) == ()


def test_a_breakdown_is_not_taken_for_a_flag(plan_file, tmp_path, capsys, monkeypatch):
    """1 says that some claim is refuted."""
    monkeypatch.setattr("privypurse.audit.subject.stand_in", lambda *_: 1 / 0)
    code, _, error = command_line.run(capsys, f"audit {plan_file} -o {tmp_path / 'audit'}")
    assert code == 3
    assert "ZeroDivisionError" in error


@pytest.mark.slow
def test_canaries_may_be_in_the_networks_own_numbers(plan_file, tmp_path, capsys):
    command_line.done(capsys, f"audit {plan_file} --canaries 300 --coordinates own -o {tmp_path / 'audit'}")
    words = " ".join(AuditResult.load(tmp_path / "audit").words)
    assert "300 of 300 canaries are in numbers of the network's own" in words
    code, _, error = command_line.run(capsys, f"audit {plan_file} -o {tmp_path / 'audit'}")
    assert code == 2
    assert "holds an audit already" in error


@pytest.mark.slow
def test_a_broken_pipeline_gives_exit_code_1(plan_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(setup, "GridNoise", lambda deviation, size: GridNoise(deviation / 4, size))
    code, out, error = command_line.run(capsys, f"audit {plan_file} --canaries 2000 -o {tmp_path / 'audit'}")
    assert (code, error) == (1, "")
    assert "FLAGGED" in out


def people(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{rng.integers(100)},{'Oslo' if rng.random() < 0.5 else 'Rome'},no,{4.0}" for _ in range(60)]
    (tmp_path / "people.csv").write_text("\n".join(["age,town,left,epsilon", *rows]) + "\n", encoding="utf-8")
    (tmp_path / "config.toml").write_text(CONFIG, encoding="utf-8")


@pytest.mark.slow
def test_a_run_is_audited_with_its_own_network_and_without_its_data(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    people(tmp_path)
    command_line.done(capsys, "train config.toml")
    (tmp_path / "people.csv").unlink()
    subject = subject_of("privypurse-run")
    assert [tuple(each.shape) for each in subject.model().parameters()] == [(4, 6), (4,), (2, 4), (2,)]
    assert subject.inputs.shape == (60, 6)
    out = command_line.done(capsys, "audit privypurse-run --canaries 200 --confidence 0.9999999")
    assert "public ranges and categories of its encoder" in out
    (tmp_path / "privypurse-run" / "plan.json").unlink()
    with pytest.raises(InvalidInput, match=r"plan\.json"):
        subject_of("privypurse-run")


def test_made_up_records_lie_in_the_public_ranges():
    columns = {"a": Range(0, 10), "b": Range(0, 99, log=True), "c": Categories(("x", "y")), "d": Flag()}
    rows = made_up_features(Encoder(columns), 500, np.random.default_rng(1))
    assert rows.shape == (500, 10)
    numbers, logs, categories, flags = rows[:, 0], rows[:, 2], rows[:, 4:8], rows[:, 8]
    assert -1 <= numbers.min() < -0.9 < 0.9 < numbers.max() <= 1
    assert 0 <= logs.min() < 0.1 < 0.9 < logs.max() <= 1
    assert (categories[:, :2].sum(1) == 1).all()  # one of those that are listed
    assert set(flags) == {0.0, 1.0}
    assert not rows[:, [1, 3, 6, 7, 9]].any()  # nothing is missing, nothing is other


def test_made_up_targets_are_as_the_target_encodes_them():
    rng = np.random.default_rng(2)
    assert set(made_up_targets(Classes("l", ("a", "b", "c")), 100, rng)) == {0, 1, 2}
    numbers = made_up_targets(Number("l", Range(0, 5, log=True)), 100, rng)
    assert numbers.shape == (100, 1)
    assert numbers.min() >= 0
    assert made_up_targets(Flags(("a", "b")), 100, rng).shape == (100, 2)


def test_what_is_said_of_made_up_records_tells_no_head_count():
    """An audit on made-up records may stand in a public report, where the numbers of people are not told."""
    plan = pp.plan(pp.Budgets([1.0] * 60), "uniform", steps=2, batch_size=10, accountant="rdp")
    one, other = (stand_in(plan.for_nobody(plan.level_of[:people])) for people in (59, 60))
    assert len(one.inputs) < len(other.inputs)
    assert one.words == other.words


def test_few_people_stand_for_many_in_their_proportions():
    plan = pp.plan(pp.Budgets([1.0] * 900 + [2.0] * 100), "uniform", steps=2, batch_size=10, accountant="rdp")
    assert np.bincount(some_levels(plan, 100)).tolist() == [90, 10]
    assert some_levels(plan, 5000).size == 1000
