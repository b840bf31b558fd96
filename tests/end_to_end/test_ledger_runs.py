"""Two trainings of the same people under one ledger, by configuration files, as a user would do it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from ledger_tools import DELTA, EPSILONS, KEY, charged, new_ledger, step_cost
from privypurse import cli
from privypurse.runs.config import parse_config
from privypurse.runs.folder import RunFolder
from privypurse.runs.kept_plan import keep, kept
from privypurse.runs.training_run import train_by
from privypurse.training.mechanism import PrivateRun

pytestmark = pytest.mark.usefixtures("empty_folder")
N = 300
IDS = np.array([f"C{k:04d}" for k in range(N)])
GRANTED = np.array(EPSILONS)[np.arange(N) % 3]

CONFIG = """
ledger = "sqlite:///purses.db"
[data]
table = "{table}"
label = "y"
classes = ["0", "1"]
person = "id"
[data.features]
x = {{ low = -4, high = 4 }}
[budgets]
epsilon = "epsilon"
[plan]
steps = 20
batch_size = 60
noise_multiplier = 3.0
at_most = {at_most}
accountant = "rdp"
[model]
kind = "mlp"
hidden = [4]
[optimizer]
name = "SGD"
lr = 0.5
[training]
out = "{out}"
purpose = "{out}"
"""


def table(name: str, order: np.ndarray) -> str:
    random = np.random.default_rng(1)
    x = random.normal(size=N).clip(-4, 4)
    y = (x + random.normal(size=N) > 0).astype(int)
    rows = [f"{IDS[k]},{GRANTED[k]:g},{x[k]:.4f},{y[k]}" for k in order]
    Path(name).write_text("\n".join(["id,epsilon,x,y", *rows]) + "\n")
    return name


def test_a_second_training_takes_what_the_first_one_left(monkeypatch):
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", KEY.hex())
    ledger = new_ledger(Path.cwd())
    ledger.join(IDS, GRANTED)
    members = ledger.members(IDS)
    first = train_by(parse_config(CONFIG.format(table=table("one.csv", np.arange(N)), out="first", at_most=0.3)))
    after = ledger.balances(members)
    assert (after >= ledger.public_balances(members)).all()
    ledger.withdraw(IDS[7:8])
    order = np.random.default_rng(2).permutation(N)
    config = CONFIG.format(table=table("two.csv", order), out="second", at_most=2.0)
    config = config.replace('purpose = "second"', '[about]\npurpose = "second"')  # which receipts say too
    second = train_by(parse_config(config))
    by_id = dict(zip(IDS[order], second.plan.rates, strict=True))
    assert by_id[IDS[7]] == 0
    fresh = pp.plan(
        pp.Budgets(GRANTED, delta=DELTA, person=IDS),
        steps=20,
        batch_size=60,
        noise_multiplier=3.0,
        accountant="rdp",
    )
    stayed = np.arange(N) != 7
    rates = np.array([by_id[person] for person in IDS])
    assert (rates[stayed] > 0).all()
    assert (rates < fresh.rates).all()  # something was taken from everybody
    assert (ledger.balances(members)[stayed] < after[stayed]).all()
    assert not ledger.verify().problems
    assert [run.purpose for run in ledger.runs()] == ["first", "second"]
    for done in (first, second):
        folder = RunFolder.open(done.folder)
        said = json.loads((done.folder / "ledger.json").read_text())
        assert said == {"ledger": ledger.id, "run": done.trained.run_id}
        assert not folder.files["anchor.json"].public
        assert not folder.files["ledger.json"].public
        looked_at = pp.verify(done.folder, ledger=ledger)
        assert looked_at.sound, str(looked_at)
        assert {"ledger", "grants", "certified ε"} <= {each.what for each in looked_at.of("fits")}
        (left,) = (each for each in pp.verify(done.folder).of("not checked") if each.what == "grants")
        assert f"in the ledger {ledger.id}; name it" in left.said
    looked_at = pp.verify(second.folder, ledger=ledger, table="two.csv")
    assert "allowed for this run" in {each.what for each in looked_at.of("fits")}
    less = Path("two.csv").read_text().replace("C0002,2,", "C0002,0.001,")
    Path("less.csv").write_text(less)  # who allows less than the plan spends, by this table
    looked_at = pp.verify(second.folder, ledger=ledger, table="less.csv")
    said = {each.what: each.said for each in looked_at.of("does not fit")}
    assert said.keys() == {"allowed for this run", "table"}
    assert "C0002" in said["allowed for this run"]
    assert "solved" not in (second.folder / "facts.json").read_text()  # noise was given
    assert "given what everybody granted" in json.loads((second.folder / "facts.json").read_text())["promise"]
    (first.folder / "ledger.json").write_text(json.dumps({"ledger": ledger.id, "run": "another"}))
    assert {each.what for each in pp.verify(first.folder, ledger=ledger).of("does not fit")} == {"files", "ledger"}
    pp.Ledger.open("sqlite:///purses.db", anchor="second/anchor.json")
    with closing(sqlite3.connect("purses.db")) as connection, connection:  # an entry that says something else now
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE entry SET time = time + 1 WHERE seq = (SELECT MIN(seq) FROM entry)")
    assert {each.what for each in pp.verify(second.folder, ledger=ledger).of("does not fit")} == {"grants"}


@pytest.mark.slow
def test_a_second_training_in_a_shell_that_does_not_know_the_ledger(monkeypatch, capsys):
    """The same file without the ledger's line is refused, a dry run too, unless it is meant so; then it is said."""
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", KEY.hex())
    monkeypatch.setenv("PRIVYPURSE_LEDGER", "sqlite:///purses.db")
    new_ledger(Path.cwd()).join(IDS, GRANTED)
    bare = CONFIG.replace('ledger = "sqlite:///purses.db"\n', "")
    for out in ("first", "second"):
        Path(f"{out}.toml").write_text(bare.format(table=table("one.csv", np.arange(N)), out=out, at_most=0.3))
    assert cli.main(["train", "first.toml"]) == 0
    assert "No ledger" not in capsys.readouterr().out
    monkeypatch.delenv("PRIVYPURSE_LEDGER")
    for options in ([], ["--dry-run"]):
        assert cli.main(["train", "second.toml", *options]) == 2
        said = capsys.readouterr()
        assert "first/anchor.json is the anchor of a ledger, and this run names no ledger" in said.err
        assert not Path("second").exists()
    Path("second.toml").write_text('ledger = "none"\n' + Path("second.toml").read_text())
    monkeypatch.setenv("PRIVYPURSE_LEDGER", "sqlite:///purses.db")  # the file knows better
    assert cli.main(["train", "second.toml"]) == 0
    assert "No ledger: nobody is charged, and every ε counts as if" in capsys.readouterr().out
    for name in ("run.json", "public.json"):
        assert json.loads(Path("second", name).read_text())["charged"].startswith("No ledger: nobody is charged")
        assert (
            json.loads(Path("first", name).read_text())["charged"] == "Everybody in the plan is charged in a ledger."
        )
    assert len(pp.Ledger.open("sqlite:///purses.db").runs()) == 1
    assert pp.verify("second").sound
    public = Path("second/public.json").read_text()
    Path("second/public.json").write_text(public.replace("No ledger: nobody", "Everybody"))
    assert "who is charged" in str(pp.verify("second"))


@pytest.mark.slow
def test_a_plan_without_the_ledger_is_refused_before_it_is_shown(monkeypatch, capsys):
    """It would be shown as one by which nobody is charged; the mend is named as it is typed."""
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", KEY.hex())
    new_ledger(Path.cwd()).join(IDS, GRANTED)
    table("one.csv", np.arange(N))
    command = "plan one.csv --person id --steps 20 --batch-size 60 --noise-multiplier 3 --accountant rdp"
    assert cli.main(command.split()) == 0
    assert "applied to their records in any order" in " ".join(capsys.readouterr().out.split())
    whole = CONFIG.format(table="one.csv", out="run", at_most=0.3)
    planned = whole[whole.index("[plan]") : whole.index("[model]")]
    Path("config.toml").write_text('plan = "plan.json"\n' + whole.replace(planned, ""))
    for options in ([], ["--dry-run"]):
        assert cli.main(["train", "config.toml", *options]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "made without a ledger" in said.err
        assert "make it anew with --ledger" in said.err


def test_delta_is_the_ledgers_where_nobody_chooses_one(monkeypatch, capsys):
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", KEY.hex())
    ledger = pp.Ledger.create("sqlite:///purses.db", epsilons=EPSILONS, delta=1e-6, key=KEY)
    ledger.join(IDS, GRANTED)
    table("people.csv", np.arange(N))
    command = (
        "plan people.csv --person id --steps 20 --batch-size 60 --noise-multiplier 3 --accountant rdp --at-most 0.3"
    )
    assert cli.main([*command.split(), "--ledger", "sqlite:///purses.db"]) == 0
    Path("config.toml").write_text(CONFIG.format(table="people.csv", out="run", at_most=0.3))
    planned = capsys.readouterr().out
    assert cli.main(["train", "config.toml"]) == 0
    for said in (planned, capsys.readouterr().out):
        assert "δ = 1e-06 for everyone, as in the ledger" in said
        assert "which is the default" not in said
        assert "the cap, ε = 0.3, is" in said
    for plan in ("plan.json", "run/plan.json"):
        assert (pp.Plan.load(plan).levels.delta == 1e-6).all()


def test_what_the_commands_print_tells_nobodys_balance(monkeypatch, capsys):
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", KEY.hex())
    ledger = new_ledger(Path.cwd())
    ledger.join(IDS, GRANTED)
    table("people.csv", np.arange(N))
    shown = []
    command = "plan people.csv --person id --steps 20 --batch-size 60 --noise-multiplier 3 --accountant rdp"
    for emptied in (False, True):
        if emptied:
            limits = np.array([[rung.limit for rung in ledger.rungs]])
            least = np.minimum.accumulate(limits[:, ::-1], axis=1)[:, ::-1]
            ledger.charge("a question", ledger.members(IDS[::2]), least, np.zeros(N // 2, dtype=int), at_most=None)
        assert cli.main([*command.split(), "--ledger", "sqlite:///purses.db", "--at-most", "0.3"]) == 0
        shown.append(capsys.readouterr().out)
        plan = pp.Plan.load("plan.json")
        assert ((plan.rates == 0).sum() > 0) == emptied
    assert shown[0] == shown[1]
    assert cli.main(command.split()) == 0
    assert "No ledger: nobody is charged" in capsys.readouterr().out.replace("\n", " ")


def killed(point: str) -> None:
    """The command in a process of its own, which dies at that point."""
    child = os.fork()
    if child:
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        return

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    release = PrivateRun.release

    def released(run: PrivateRun) -> None:
        release(run)
        if run.steps_taken == 6:
            die()

    if point == "the plan is kept":
        PrivateRun.charge_to = die
    elif point == "all is reserved":
        pp.Ledger.take_over = die
    else:
        PrivateRun.release = released
    cli.main(["train", "config.toml"])
    os._exit(1)


WITH_CHECKPOINT = CONFIG.replace("[training]", '[training]\ncheckpoint = "kept"')


@pytest.fixture
def ledger(monkeypatch):
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", KEY.hex())
    made = new_ledger(Path.cwd())
    made.join(IDS, GRANTED)
    table("people.csv", np.arange(N))
    Path("config.toml").write_text(WITH_CHECKPOINT.format(table="people.csv", out="run", at_most=0.45))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("point", ["the plan is kept", "all is reserved", "six steps are taken"])
def test_a_killed_command_goes_on_with_its_plan_and_is_charged_once(ledger, capsys, point):
    killed(point)
    plan = json.loads(Path("kept/planned.json").read_text())["plan"]
    assert Path("kept/planned.json").stat().st_mode & 0o777 == 0o600
    table("people.csv", np.random.default_rng(2).permutation(N))  # the same people's rows in another order
    assert cli.main(["train", "config.toml"]) == 0
    (run,) = ledger.runs()
    assert run.settled is not None
    begun = ledger.begun(run.run_id).count
    assert begun == 20
    plan = pp.Plan.load("run/plan.json").applied_to(IDS)
    orders = [rung.order for rung in ledger.rungs]
    want = 20 * np.array([[step_cost(rate, 3.0, order) for order in orders] for rate in plan.rates])
    have = charged(ledger, IDS)
    assert (have >= want * (1 - 1e-9)).all()
    assert (have <= want * (1 + 1e-6) + 1e-9).all()
    assert json.loads(Path("run/ledger.json").read_text())["run"] == run.run_id
    assert cli.main(["ledger", "verify", "--ledger", "sqlite:///purses.db", "--anchor", "kept/steps.anchor"]) == 0
    capsys.readouterr()


def test_the_twin_that_plans_anew_cannot_go_on(ledger, capsys, monkeypatch):
    killed("six steps are taken")
    monkeypatch.setattr("privypurse.runs.planning.kept", lambda *_: None)
    monkeypatch.setattr("privypurse.runs.planning.keep", lambda *_: True)
    assert cli.main(["train", "config.toml"]) == 2
    assert "another plan" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.slow
def test_a_run_goes_on_only_as_it_began(ledger, capsys):
    killed("six steps are taken")
    text = Path("config.toml").read_text()
    for old, new, said in (
        ("steps = 20", "steps = 30", "began with steps = 20"),
        ("at_most = 0.45", "at_most = 0.4", "began with at_most = 0.45"),
    ):
        Path("config.toml").write_text(text.replace(old, new))
        assert cli.main(["train", "config.toml"]) == 2
        assert said in capsys.readouterr().err.replace("\n", " ")
    Path("config.toml").write_text(text)
    rows = Path("people.csv").read_text()
    Path("people.csv").write_text(rows.replace("C0002,2,", "C0002,0.001,"))  # who grants less now than was planned
    assert cli.main(["train", "config.toml"]) == 2
    assert "of person C0002" in capsys.readouterr().err.replace("\n", " ")
    Path("people.csv").write_text(rows)
    assert cli.main(["train", "config.toml"]) == 0


def test_of_two_plans_the_first_one_stays(ledger, tmp_path):
    config = parse_config(Path("config.toml").read_text())
    budgets = pp.Budgets(GRANTED, delta=DELTA, person=IDS)
    shape = {"steps": 20, "batch_size": 60, "accountant": "rdp", "ledger": ledger}
    one, two = (pp.plan(budgets, noise_multiplier=noise, **shape) for noise in (3.0, 4.0))
    assert keep(one, tmp_path / "kept", config.plan)
    assert not keep(two, tmp_path / "kept", config.plan)
    assert kept(tmp_path / "kept", config.plan, budgets).digest() == one.digest()
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["planned.json"]


def begun_and_killed(told: int, after: float) -> bool:
    """The command in a process that tells each step as it is released; whether it came to its end before the kill.

    Or found that the one before had, and was killed when its model was written.
    """
    written = Path("run/model.pt").exists()
    child = os.fork()
    if not child:
        release = PrivateRun.release

        def released(run: PrivateRun) -> None:
            release(run)
            os.write(told, b"%d\n" % run.steps_taken)
            time.sleep(0.02)

        PrivateRun.release = released
        os._exit(cli.main(["train", "config.toml"]))
    deadline = time.monotonic() + after
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert os.WEXITSTATUS(status) == (2 if written else 0)
            return True
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


@pytest.mark.slow
def test_a_command_that_is_killed_again_and_again_releases_no_step_twice(ledger):
    Path("config.toml").write_text(Path("config.toml").read_text().replace("steps = 20", "steps = 200"))
    rng = np.random.default_rng(0)
    read, told = os.pipe()
    kills = 0
    while not begun_and_killed(told, rng.uniform(0, 4) if kills < 8 else 300):
        kills += 1
    os.close(told)
    with os.fdopen(read) as file:
        released = [int(line) for line in file]
    assert kills > 2
    assert len(set(released)) == len(released) > 20
    (run,) = ledger.runs()
    assert run.settled is not None
    assert ledger.begun(run.run_id).count == 200
    assert not ledger.verify().problems
    plan = pp.Plan.load("run/plan.json").applied_to(IDS)
    want = np.array([[step_cost(rate, 3.0, rung.order) for rung in ledger.rungs] for rate in plan.rates])
    assert (charged(ledger, IDS) >= len(released) * want * (1 - 1e-9)).all()
