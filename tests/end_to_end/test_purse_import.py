"""Purses from before on the command line: noticed before anything is asked, and taken over by the command named."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from privypurse import cli
from privypurse.queries.table_ledger import opened
from run_folders import TWO_STEPS

pytestmark = pytest.mark.usefixtures("empty_folder")
FOLDER = Path(__file__).parents[1] / "unit" / "queries" / "purse_files"
PEOPLE = ["ada", "bea", "cyd", "dov", "eve"]


@pytest.fixture(autouse=True)
def visits(empty_folder, monkeypatch):
    monkeypatch.delenv("PRIVYPURSE_LEDGER", raising=False)
    monkeypatch.delenv("PRIVYPURSE_LEDGER_KEY", raising=False)
    shutil.copy(FOLDER / "visits.csv", "visits.csv")


@pytest.fixture
def ledger():
    made = pp.Ledger.create("sqlite:///purses.db", epsilons=[0.5, 1, 2], delta=1e-5, key="ledger.key")
    made.join(PEOPLE, [1.0, 1.0, 2.0, 0.5, 2.0])
    return made


NAMED = "--ledger sqlite:///purses.db --key ledger.key"


def run(capsys, line):
    code = cli.main(shlex.split(line))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def offered(err):
    """The command that an error names."""
    return re.search(r"privypurse (ledger import .*?)(?:\.|$)(?: |\n|$)", err)[1]


@pytest.mark.parametrize(
    ("purses", "options", "people"),
    [
        ("by_row.purses", "", range(6)),
        ("by_row.purses", "--person who", PEOPLE),
        ("by_id.purses", "--person who", PEOPLE),
        ("by_row.purses", "--person who --epsilon 2 --delta 1e-6", PEOPLE),
    ],
)
def test_purses_beside_the_table_are_taken_over_by_the_command_that_is_named(capsys, purses, options, people):
    shutil.copy(FOLDER / purses, "visits.csv.purses")
    question = f"query visits.csv {options} count --noise 50"
    code, out, err = run(capsys, question)
    assert (code, out) == (2, "")
    assert "everybody would have a full purse again" in err
    assert not Path("visits.csv.ledger").exists()
    command = offered(err)
    code, out, err = run(capsys, f"{command} --dry-run")
    assert (code, err) == (0, "")
    assert "would be made" in out
    assert not Path("visits.csv.ledger").exists()
    assert run(capsys, command)[0] == 0
    ledger = opened(Path("visits.csv.ledger"))
    spent = ledger.spent(ledger.members(list(people)))
    assert (spent > 0).all()
    code, out, _ = run(capsys, command)
    assert (code, "nothing was charged again" in out) == (0, True)
    code, out, _ = run(capsys, f"{command} --dry-run")
    assert (code, "is in it already" in out) == (0, True)
    assert (ledger.spent(ledger.members(list(people))) == spent).all()
    assert run(capsys, question)[0] == 0
    assert [one.what for one in ledger.runs()] == ["earlier questions", "question"]
    assert ledger.verify().problems == []


def test_a_ledger_that_is_made_but_has_not_taken_the_purses_over_answers_nothing(capsys):
    assert run(capsys, "query visits.csv count --noise 50")[0] == 0
    shutil.copy(FOLDER / "by_row.purses", "visits.csv.purses")
    code, out, err = run(capsys, "query visits.csv count --noise 50")
    assert (code, out) == (2, "")
    assert offered(err) == "ledger import --purses visits.csv.purses --table visits.csv"
    assert len(opened(Path("visits.csv.ledger")).runs()) == 1


def test_under_a_named_ledger_purses_of_every_kind_are_noticed(capsys, ledger):
    shutil.copy(FOLDER / "by_row.purses", "visits.csv.purses")
    question = f"query visits.csv --person who {NAMED} count --noise 50"
    code, out, err = run(capsys, question)
    assert (code, out) == (2, "")
    assert f"--person who {NAMED}" in offered(err)
    code, out, _ = run(capsys, f"{offered(err)} --dry-run")
    assert (code, "can be charged in it" in out) == (0, True)
    assert not ledger.runs()
    assert run(capsys, f"{offered(err)} --at-most 0.49")[0] == 0
    assert run(capsys, question)[0] == 0
    assert (ledger.public_balances(ledger.members(["ada", "cyd"])) > 0).all()
    Path("visits.csv.purses").unlink()

    assert run(capsys, "query visits.csv count --noise 50")[0] == 0  # a private ledger, of rows
    code, out, err = run(capsys, question)
    assert (code, out) == (2, "")
    assert "Move them" in err
    assert run(capsys, offered(err))[0] == 0
    assert run(capsys, question)[0] == 0
    code, out, err = run(capsys, "query visits.csv count --noise 50")
    assert (code, out) == (2, "")
    assert f"have moved to the ledger {ledger.id}" in err
    assert [one.what for one in ledger.runs()] == ["earlier questions", "question", "earlier questions", "question"]
    assert ledger.verify().problems == []


def test_a_private_ledger_of_people_is_a_ledger_like_any_other(capsys, ledger):
    assert run(capsys, "query visits.csv --person who count --noise 50")[0] == 0
    code, _, err = run(capsys, f"query visits.csv --person who {NAMED} count --noise 50")
    assert code == 2
    assert not ledger.runs()
    way = re.search(r"Go on with it: (--ledger \S+ --key \S+)\. ", err)[1]
    assert run(capsys, f"query visits.csv --person who {way} count --noise 50")[0] == 0
    assert len(opened(Path("visits.csv.ledger")).runs()) == 2
    code, out, _ = run(capsys, f"receipt --person ada {way}")
    assert (code, "ε = 1" in out) == (0, True)
    assert run(capsys, f"ledger consent --person ada --withdraw {way}")[0] == 0
    assert run(capsys, "query visits.csv --person who count --noise 50")[0] == 0
    assert not opened(Path("visits.csv.ledger")).balances(opened(Path("visits.csv.ledger")).members(["ada"])).any()


CONFIG = f"""
[data]
table = "visits.csv"
person = "who"
label = "cost"
classes = ["10", "20", "30", "40", "50", "60"]
features = {{ age = {{ low = 0, high = 100 }} }}
[budgets]
{TWO_STEPS}
at_most = 0.4
[training]
out = "run"
"""


def test_training_under_a_named_ledger_notices_the_tables_own(capsys, ledger):
    Path("config.toml").write_text(CONFIG)
    train = f"train config.toml --dry-run {NAMED}"
    assert run(capsys, train)[0] == 0
    assert run(capsys, "query visits.csv count --noise 50")[0] == 0  # a private ledger, of rows
    code, out, err = run(capsys, train)
    assert (code, out) == (2, "")
    assert "Move its purses" in err
    moving = f"ledger import --purses visits.csv.ledger --table visits.csv --person who {NAMED} --at-most 0.49"
    assert run(capsys, moving)[0] == 0
    assert run(capsys, train)[0] == 0


def test_training_under_the_tables_own_ledger(capsys, ledger):
    Path("config.toml").write_text(CONFIG)
    assert run(capsys, "query visits.csv --person who count --noise 50")[0] == 0
    code, out, err = run(capsys, f"train config.toml --dry-run {NAMED}")
    assert (code, out) == (2, "")
    way = re.search(r"Train under it: (--ledger \S+ --key \S+)\. ", err)[1]
    assert run(capsys, f"train config.toml --dry-run {way}")[0] == 0


def test_nobody_has_a_second_purse_by_being_named_in_a_ledger_of_rows(capsys, ledger):
    """Not by the name of a column of ids, nor by one of numbers, which rows are known by."""
    assert run(capsys, "query visits.csv count --noise 50")[0] == 0
    own = "--ledger sqlite:///visits.csv.ledger --key visits.csv.ledger.key"
    lines = Path("visits.csv").read_text().splitlines()
    ids = ["id", *map(str, range(len(lines) - 1))]
    Path("named.csv").write_text("".join(f"{one},{line}\n" for one, line in zip(ids, lines, strict=True)))
    Path("config.toml").write_text(CONFIG)
    for line in (
        f"ledger import visits.csv --person who {own}",
        f"ledger import named.csv --person id --dry-run {own}",
        f"ledger import named.csv --person id {own}",
        f"ledger consent --join --person Z1 --epsilon 1 {own}",
        f"query visits.csv --person who {own} count --noise 50",
        f"query named.csv --person id {own} count --noise 50",
        f"train config.toml --dry-run {own}",
    ):
        code, out, err = run(capsys, line)
        assert (line, code, out) == (line, 2, "")
        assert "this ledger has a purse for each row of one data set" in " ".join(err.split())
        assert "move its purses to another ledger: privypurse ledger import --purses" in " ".join(err.split())
    assert run(capsys, "query visits.csv count --noise 50")[0] == 0
    shown = run(capsys, f"ledger show --ledger {own.split()[1]}")[1]
    assert "one purse for each row (other rows of the same person have purses of their own)" in shown
    assert "this one row; other rows of yours" in run(capsys, f"receipt --person 0 {own}")[1]
    way = f"ledger import --purses visits.csv.ledger --table visits.csv --person who {NAMED}"
    assert run(capsys, way)[0] == 0
    assert (ledger.spent(ledger.members(PEOPLE)) > 0).all()


def test_rows_go_on_as_people_beside_the_same_table(capsys):
    assert run(capsys, "query visits.csv count --noise 20")[0] == 0
    code, _, err = run(capsys, "ledger import --purses visits.csv.ledger --table visits.csv --person who")
    assert code == 2
    assert "move it with its key and anchor to another name first" in err
    for ending in ("", ".key", ".anchor"):
        Path(f"visits.csv.ledger{ending}").rename(f"old.ledger{ending}")
    assert run(capsys, "ledger import --purses old.ledger --table visits.csv --person who")[0] == 0
    lines = Path("visits.csv").read_text().splitlines()
    Path("visits.csv").write_text("\n".join([lines[0], *lines[:0:-1], "fay,33,5,2"]) + "\n")
    code, out, _ = run(capsys, "query visits.csv --person who count --noise 20")
    assert (code, "new people with full purses: 1\n" in out) == (0, True)
    kept = opened(Path("visits.csv.ledger"))
    spent = kept.spent(kept.members([*PEOPLE, "fay"]))[:, -1] / kept.rungs[-1].order * 2 * 2.0**-40
    exact = np.array([2, 5, 2, 2, 2, 1]) / 400  # bea's rows moved the first answer by 2
    assert ((exact <= spent) & (spent <= 1.02 * exact)).all()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ledger import", "no table is named"),
        ("ledger import --purses by_row.purses", "--purses needs --table"),
        ("ledger import visits.csv --purses by_row.purses --table visits.csv", "no table of consents"),
        ("ledger import --purses nothing --table visits.csv", "cannot be read: No such file"),
        ("ledger import --purses visits.csv --table visits.csv", "holds no purses"),
        ("ledger import --purses by_id.purses --table visits.csv", "another list of ids"),
        ("ledger import --purses by_id.purses --table visits.csv --person age", "another list of ids"),
        (f"ledger import --purses by_row.purses --table visits.csv {NAMED}", "give --person"),
        (f"ledger import --purses by_row.purses --table visits.csv --person cost {NAMED}", "never joined"),
        (
            f"ledger import --purses by_row.purses --table visits.csv --person who --epsilon 1 {NAMED}",
            "leave them out",
        ),
        ("ledger import --purses by_row.purses --table edited.csv --person who", "another data set"),
    ],
)
def test_errors_say_what_to_mend(capsys, ledger, line, said):
    for name in ("by_row.purses", "by_id.purses"):
        shutil.copy(FOLDER / name, name)
    Path("edited.csv").write_text(Path("visits.csv").read_text().replace("85", "86"))
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert said in err
    assert not ledger.runs()
    assert not list(Path().glob("*.csv.ledger*"))


def test_an_import_that_is_refused_leaves_no_full_purses(capsys):
    assert run(capsys, "query visits.csv count --noise 20")[0] == 0
    for ending in ("", ".key", ".anchor"):
        Path(f"visits.csv.ledger{ending}").rename(f"old.ledger{ending}")
    moving = "ledger import --purses old.ledger --table visits.csv --person who"
    assert run(capsys, f"{moving} --at-most -1")[0] == 2
    assert not Path("visits.csv.ledger").exists()
    code, out, _ = run(capsys, moving)
    assert (code, "is charged in the ledger" in out) == (0, True)
    kept = opened(Path("visits.csv.ledger"))
    assert (kept.spent(kept.members(PEOPLE)) > 0).all()


def test_a_ledger_that_cannot_be_charged_is_not_made(capsys, monkeypatch):
    """Broken off between making it and charging it: nobody finds full purses."""
    shutil.copy(FOLDER / "by_id.purses", "visits.csv.purses")
    with monkeypatch.context() as patched:
        patched.setattr(pp.Ledger, "charge_past", lambda *_, **__: 1 / 0)
        assert run(capsys, "ledger import --purses visits.csv.purses --table visits.csv --person who")[0] == 3
    assert not list(Path().glob("*.ledger*"))


@pytest.mark.parametrize(
    "command", ["query visits.csv --person who {} count --noise 50", "train config.toml --dry-run {}"]
)
def test_a_copy_of_the_tables_own_ledger_is_not_that_ledger(capsys, command):
    Path("config.toml").write_text(CONFIG)
    assert run(capsys, "query visits.csv --person who count --noise 50")[0] == 0
    shutil.copy("visits.csv.ledger", "copy.db")
    code, out, err = run(capsys, command.format("--ledger sqlite:///copy.db --key visits.csv.ledger.key"))
    assert (code, out) == (2, "")
    assert "own ledger" in err
    own = "--ledger sqlite:///visits.csv.ledger --key visits.csv.ledger.key"
    assert run(capsys, command.format(own))[0] == 0


def test_the_tables_own_ledger_keeps_its_anchor_however_it_is_named(capsys):
    assert run(capsys, "query visits.csv --person who count --noise 50")[0] == 0
    shutil.copy("visits.csv.ledger", "old.db")
    own = "--ledger sqlite:///visits.csv.ledger --key visits.csv.ledger.key"
    assert run(capsys, f"query visits.csv --person who {own} count --noise 50")[0] == 0
    shutil.copy("old.db", "visits.csv.ledger")
    code, out, err = run(capsys, "query visits.csv --person who count --noise 50")
    assert (code, out) == (2, "")
    assert "old or forked copy" in err


@pytest.mark.parametrize("lost", [["visits.csv.ledger"], ["visits.csv.ledger", "visits.csv.ledger.anchor"]])
def test_a_ledger_that_is_lost_is_not_one_that_never_was(capsys, ledger, lost):
    Path("config.toml").write_text(CONFIG)
    assert run(capsys, "query visits.csv --person who count --noise 50")[0] == 0
    for name in lost:
        Path(name).rename(f"{name}.away")
    for command in (
        "query visits.csv --person who count --noise 50",
        f"query visits.csv --person who {NAMED} count --noise 50",
        f"train config.toml --dry-run {NAMED}",
    ):
        code, out, err = run(capsys, command)
        assert (code, out) == (2, ""), command
        assert "is missing beside its" in err


def test_a_link_into_a_place_that_is_not_mounted_is_a_lost_ledger(capsys):
    Path("disk").mkdir()
    Path("visits.csv.ledger").symlink_to("disk/purses")
    code, _, err = run(capsys, "query visits.csv --person who count --noise 50")
    assert code == 2
    assert "leads to a ledger that is not there" in err
    assert not list(Path("disk").iterdir())


def test_a_table_that_was_renamed_has_no_full_purses(capsys):
    assert run(capsys, "query visits.csv --person who count --noise 50")[0] == 0
    Path("visits.csv").rename("other.csv")
    code, out, err = run(capsys, "query other.csv --person who count --noise 50")
    assert (code, out) == (2, "")
    assert "rename the ledger too" in err
    for ending in ("", ".key", ".anchor"):
        Path(f"visits.csv.ledger{ending}").rename(f"other.csv.ledger{ending}")
    assert run(capsys, "query other.csv --person who count --noise 50")[0] == 0


def test_a_question_beside_the_anchor_of_a_ledger_makes_no_other(capsys, ledger):
    Path("first").mkdir()
    ledger.write_anchor("first/anchor.json")
    question = "query visits.csv --person who {} count --noise 50"
    code, out, err = run(capsys, question.format(""))
    assert (code, out) == (2, "")
    assert "first/anchor.json is the anchor of a ledger" in err
    assert not Path("visits.csv.ledger").exists()
    assert run(capsys, question.format("--ledger none"))[0] == 0
    assert run(capsys, question.format(""))[0] == 0  # it is there now


@pytest.mark.parametrize("named", [NAMED, ""])
def test_training_notices_purses_from_before_too(capsys, ledger, named):
    Path("config.toml").write_text(
        CONFIG.replace("[budgets]", "[budgets]\nepsilon = 'epsilon'" if not named else "[budgets]")
    )
    shutil.copy(FOLDER / "by_id.purses", "visits.csv.purses")
    code, out, err = run(capsys, f"train config.toml --dry-run {named}")
    assert (code, out) == (2, "")
    assert "visits.csv.purses says what people spent" in err
