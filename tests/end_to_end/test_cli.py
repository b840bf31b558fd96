"""The command line, from a file of people to a plan that loads and keeps everyone's budget."""

import dataclasses
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import privypurse as pp
from privypurse import cli
from privypurse.plans import file as planfile

QUICK = ["--accountant", "rdp", "--steps", "20", "--batch-size", "2"]


pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(
        "name,epsilon,budget,consent,failure\n"
        "anna,1,3,strict,1e-5\n"
        "bo,2,4,medium,1e-6\n"
        "cy,3,8,relaxed,1e-5\n"
        "bo,2,4,medium,1e-6\n"
        "dee,1,3,strict,1e-5\n",
        encoding="utf-8",
    )
    return str(path)


def run(capsys, *arguments):
    """Exit code, standard output and standard error of one command."""
    code = cli.main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def table_of(output):
    """The rows of the printed table, as lists of cells without the frame."""
    lines = [line.strip() for line in output.splitlines()]
    rows = [re.split(r"[│┃]", line.strip("│┃")) for line in lines if line.startswith(("│", "┃"))]
    return [[cell.strip() for cell in row] for row in rows]


def test_a_plan_from_a_column_of_budgets(capsys, people, tmp_path):
    code, out, err = run(capsys, "plan", people, "--epsilon", "epsilon", *QUICK)
    assert (code, err) == (0, "")
    header, *rows = table_of(out)
    assert header[:3] == ["people", "ε promised", "ε certified"]
    assert [row[:2] for row in rows] == [["2", "1"], ["2", "2"], ["1", "3"]]
    for row in rows:
        assert 0.99 * float(row[1]) < float(row[2]) <= float(row[1])
    plan = pp.Plan.load(tmp_path / "plan.json")
    budgets = pp.Budgets([1.0, 2.0, 3.0, 2.0, 1.0])
    plan.check(budgets)
    assert (plan.spent() <= budgets.epsilon).all()
    assert (plan.method, plan.accountant, plan.steps, plan.batch_size) == ("sample", "rdp", 20, 2)
    assert "plan.json" in out
    assert "given the list of budgets" in " ".join(out.split())


def test_the_command_line_plans_what_the_library_plans(capsys, people, tmp_path):
    assert run(capsys, "plan", people, *QUICK, "--out", "mine.json")[0] == 0
    mine = pp.Plan.load(tmp_path / "mine.json")
    theirs = pp.plan(pp.Budgets.read(people), steps=20, batch_size=2, accountant="rdp")
    assert planfile.dumps(dataclasses.replace(mine, seal=None)) == planfile.dumps(theirs)
    assert mine.rates.tobytes() == theirs.rates.tobytes()


def test_a_plan_of_epochs_under_a_public_cap(capsys, people, tmp_path):
    shape = ["--accountant", "rdp", "--batch-size", "2", "--at-most", "2.5"]
    code, out, _ = run(capsys, "plan", people, *shape, "--epochs", "3")
    assert code == 0
    plan = pp.Plan.load(tmp_path / "plan.json")
    assert (plan.steps, plan.public_epsilon, plan.epsilon.max()) == (8, 2.5, 2.5)
    assert "nobody's ε is above 2.5" in out
    given = [*shape, "--epochs", "3", "--noise-multiplier", "2"]
    code, _, err = run(capsys, "plan", people, *given)
    assert (code, "people" in err) == (2, True)
    assert run(capsys, "plan", people, *given, "--people", "7")[0] == 0
    assert pp.Plan.load(tmp_path / "plan.json").steps == 11


def test_a_plan_from_levels(capsys, people, tmp_path):
    levels = "strict=0.5, medium=1.5,relaxed=4"
    code, out, _ = run(capsys, "plan", people, "--level", "consent", "--levels", levels, *QUICK, "--out", "out.json")
    assert code == 0
    assert [row[:2] for row in table_of(out)[1:]] == [["2", "0.5"], ["2", "1.5"], ["1", "4"]]
    plan = pp.Plan.load(tmp_path / "out.json")
    assert plan.epsilon.tolist() == [0.5, 1.5, 4.0, 1.5, 0.5]
    assert (plan.spent() <= plan.epsilon).all()


def test_a_plan_with_persons_and_a_column_of_deltas(capsys, people, tmp_path):
    code, out, _ = run(capsys, "plan", people, "--person", "name", "--delta", "failure", *QUICK)
    assert code == 0
    assert "4 people with 5 records" in out
    assert sum(int(row[0]) for row in table_of(out)[1:]) == 4
    plan = pp.Plan.load(tmp_path / "plan.json")
    assert (plan.people, plan.records) == (4, 5)
    assert plan.rates[1] == plan.rates[3]
    assert plan.delta.tolist() == [1e-5, 1e-6, 1e-5, 1e-6, 1e-5]
    plan.check(pp.Budgets.read(people, delta="failure", person="name"))


def test_a_plan_from_parquet_by_the_tighter_accountant(capsys, tmp_path):
    pq.write_table(pa.table({"epsilon": [1.0, 2.0, 4.0] * 5}), tmp_path / "people.parquet")
    code, out, _ = run(capsys, "plan", "people.parquet", "--steps", "20", "--batch-size", "3")
    assert code == 0
    plan = pp.Plan.load(tmp_path / "plan.json")
    assert plan.accountant == "pld"
    assert (plan.spent() <= [1.0, 2.0, 4.0] * 5).all()
    by_rdp = pp.plan(pp.Budgets([1.0, 2.0, 4.0] * 5), steps=20, batch_size=3, accountant="rdp")
    assert plan.noise_multiplier < by_rdp.noise_multiplier
    assert f"{plan.noise_multiplier:.5g}" in out


def test_options_reach_the_plan(capsys, people, tmp_path):
    options = ["--epsilon", "budget", "--noise-multiplier", "2.5", "--clip-norm", "0.2", "--delta", "1e-4"]
    code, out, _ = run(capsys, "plan", people, *options, *QUICK)
    assert code == 0
    plan = pp.Plan.load(tmp_path / "plan.json")
    assert (plan.noise_multiplier, plan.clip_norm) == (2.5, 0.2)
    assert plan.epsilon.tolist() == [3.0, 4.0, 8.0, 4.0, 3.0]
    assert plan.delta.tolist() == [1e-4] * 5
    assert plan.promise is pp.Promise.PRESENCE
    assert "presence and declared ε" in " ".join(out.split())


def test_methods_and_threshold_reach_the_plan(capsys, people, tmp_path):
    assert run(capsys, "plan", people, *QUICK, "--method", "exclude", "--threshold", "2")[0] == 0
    assert (pp.Plan.load(tmp_path / "plan.json").rates > 0).tolist() == [False, True, True, True, False]
    assert run(capsys, "plan", people, *QUICK, "--method", "scale")[0] == 0
    assert pp.Plan.load(tmp_path / "plan.json").method == "scale"


def test_people_who_are_capped_are_mentioned(capsys, tmp_path):
    (tmp_path / "people.csv").write_text("epsilon\n1\n1000000\n", encoding="utf-8")
    code, out, _ = run(capsys, "plan", "people.csv", *QUICK, "--noise-multiplier", "1")
    assert code == 0
    assert "(capped)" in out
    assert "1 people granted more" in out


BAD = {
    "no such file": (["plan", "nobody.csv"], ["nobody.csv", "does not exist"]),
    "no such column": (["plan", "people.csv", "--epsilon", "eps"], ["'eps'", "'name', 'epsilon', 'budget'"]),
    "text for a budget": (["plan", "people.csv", "--epsilon", "name"], ["'name'", "row 1", "a text, not a number"]),
    "levels without a level": (
        ["plan", "people.csv", "--levels", "strict=1"],
        ["or --level (a column", "given is --levels"],
    ),
    "level without an ε": (
        ["plan", "people.csv", "--level", "consent", "--levels", "strict=1,relaxed=3"],
        ["'consent'", "row 2", "a text without an ε", "'strict', 'relaxed'"],
    ),
    "negative level": (
        ["plan", "people.csv", "--level", "consent", "--levels", "strict=-1,medium=2,relaxed=3"],
        ["'strict'", "above 0, not -1.0"],
    ),
    "two budgets of one": (["plan", "twice.csv", "--person", "name"], ["person bo", "epsilon"]),
    "delta": (["plan", "people.csv", "--delta", "2"], ["delta", "2.0", "between 0 and 1"]),
    "delta column": (["plan", "people.csv", "--delta", "nothing"], ["'nothing'", "no column"]),
    "steps": (["plan", "people.csv", "--steps", "0"], ["--steps must be", "at least 1, not 0"]),
    "batch size": (
        ["plan", "people.csv", "--batch-size", "6"],
        ["--batch-size is 6", "only 5 people", "lower it, or give --noise-multiplier and let --batch-size be"],
    ),
    "clip norm": (
        ["plan", "people.csv", "--clip-norm", "nan"],
        ["--clip-norm must be a finite number", "not nan"],
    ),
    "noise": (
        ["plan", "people.csv", "--noise-multiplier", "-1"],
        ["--noise-multiplier must be", "above 0, not -1.0"],
    ),
    "threshold": (["plan", "people.csv", "--threshold", "1"], ["--threshold", "exclude"]),
    "nobody left": (
        ["plan", "people.csv", "--method", "exclude", "--threshold", "9"],
        ["--threshold is 9", "largest ε 3"],
    ),
    "infeasible": (["plan", "strict.csv"], ["ε = 1e-06", "rdp"]),
    "ending": (["plan", "people.txt"], ["people.txt", "neither .csv nor .parquet"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_that_says_what_to_do(capsys, people, tmp_path, case):
    (tmp_path / "twice.csv").write_text("name,epsilon\nbo,1\nbo,2\n", encoding="utf-8")
    (tmp_path / "strict.csv").write_text("epsilon\n1\n0.000001\n1\n", encoding="utf-8")
    (tmp_path / "people.txt").write_text("epsilon\n1\n", encoding="utf-8")
    arguments, words = BAD[case]
    code, out, err = run(capsys, arguments[0], arguments[1], *QUICK, *arguments[2:])
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    for word in words:
        assert word in err
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["plan"],
        ["plan", "people.csv", "--steps", "20"],
        ["plan", "people.csv", *QUICK, "--epochs", "2"],
        ["plan", "people.csv", "--steps", "many", "--batch-size", "2"],
        ["plan", "people.csv", *QUICK, "--levels", "strict"],
        ["plan", "people.csv", *QUICK, "--levels", "strict=one"],
        ["plan", "people.csv", *QUICK, "--method", "best"],
        ["train"],
    ],
)
def test_wrong_usage_shows_how_it_is_meant(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("usage: privypurse")
    assert "Traceback" not in err


def help_of(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        cli.main([*arguments, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_teaches(capsys):
    top = help_of(capsys)
    for command in ("plan", "train", "demo"):
        assert command in top
    text = help_of(capsys, "plan")
    for word in ("examples:", "methods:", "--person", "--levels", "--noise-multiplier", "--out"):
        assert word in text
    for method in ("sample", "scale", "uniform", "exclude", "curve-fit"):
        assert re.search(rf"^  {method}\s+\w", text, re.MULTILINE)


@pytest.mark.slow
def test_the_examples_of_the_help_work(capsys, tmp_path):
    """Each line is run as it stands there, but for its size, on a file that has what it needs."""
    text = "epsilon,consent,patient_id\n1,strict,a\n2,medium,b\n3,relaxed,c\n1,strict,a\n"
    (tmp_path / "people.csv").write_text(text, encoding="utf-8")
    pq.write_table(pa.table({"epsilon": [1.0, 2.0, 1.0], "patient_id": [7, 8, 7]}), tmp_path / "visits.parquet")
    examples = [line.split()[1:] for line in help_of(capsys, "plan").splitlines() if line.startswith("  privypurse ")]
    assert len(examples) >= 3
    for arguments in examples:
        smaller = [{"2000": "20", "512": "2"}.get(word, word) for word in arguments]
        code, out, err = run(capsys, *smaller, "--accountant", "rdp")
        assert (code, err) == (0, "")
        assert "written to plan.json" in out


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.split() == ["privypurse", pp.__version__]


@pytest.mark.slow
def test_as_a_program(people, tmp_path):
    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "privypurse.cli", *arguments],
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
            timeout=900,  # a busy machine keeps it
        )

    good = call("plan", people, *QUICK, "--out", "program.json")
    assert (good.returncode, good.stderr) == (0, "")
    assert "ε certified" in good.stdout
    pp.Plan.load(tmp_path / "program.json").check(pp.Budgets.read(people))
    bad = call("plan", people, *QUICK, "--epsilon", "consent")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.count("\n") == 1
    assert "row 1 below the header holds a text, not a number" in bad.stderr


@pytest.mark.parametrize("out", ["table.csv", "folder", "nowhere/plan.json", "letter.txt"])
def test_out_never_destroys_anything(tmp_path, capsys, out):
    table = tmp_path / "table.csv"
    table.write_text("epsilon\n1\n2\n", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "letter.txt").write_text("dear reader", encoding="utf-8")
    arguments = ["plan", str(table), "--steps", "5", "--batch-size", "1", "--accountant", "rdp"]
    assert cli.main([*arguments, "--out", str(tmp_path / out)]) == 2
    assert "--out" in capsys.readouterr().err
    assert table.read_text(encoding="utf-8") == "epsilon\n1\n2\n"
    good = tmp_path / "plan.json"
    assert cli.main([*arguments, "--out", str(good)]) == 0
    assert cli.main([*arguments, "--out", str(good)]) == 0  # a plan may replace a plan
    assert good.stat().st_mode & 0o077 == 0  # and only its owner may read it
