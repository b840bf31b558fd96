"""privypurse query: from a file of people to private answers whose cost adds up."""

import json
import math
import re
import shlex
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import privypurse as pp
from privypurse import cli
from privypurse.accounting import gdp
from privypurse.budgets.tables import read_table
from privypurse.queries import Analyst
from privypurse.queries.pursefile import PurseFile
from privypurse.runs.folder import RunFolder

N = 400


pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def people(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "age": rng.integers(0, 100, N),
            "city": np.array(["Oslo", "Bergen"])[rng.integers(0, 2, N)],
            "pay": rng.normal(300, 50, N).round(2),
            "two words": rng.integers(0, 2, N),
            "who": rng.integers(0, 100, N),
            "epsilon": rng.choice([1.0, 2.0], N),
        }
    )
    pq.write_table(table, tmp_path / "people.parquet")
    names = table.column_names
    rows = zip(*(table[name].to_pylist() for name in names), strict=True)
    lines = [",".join(names), *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return table


def run(capsys, line):
    code = cli.main(["query", *shlex.split(line)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def spent(table, name="people.csv"):
    columns = {key: np.asarray(table[key]) for key in table.column_names}
    columns["city"] = columns["city"].astype(object)
    budgets = pp.Budgets(columns["epsilon"])
    with Analyst(read_table(name), budgets, person=budgets.person, purses=f"{name}.purses") as asks:
        return asks.purses.spent


@pytest.mark.parametrize("name", ["people.csv", "people.parquet"])
def test_answers_near_the_truth_and_costs_that_add_up(capsys, people, name):
    age, city, pay = (np.asarray(people[key]) for key in ("age", "city", "pay"))
    code, out, err = run(capsys, f"""{name} count --where "age >= 65 and city == 'Oslo'" --noise 20""")
    assert (code, err) == (0, "")
    truth = int(((age >= 65) & (city == "Oslo")).sum())
    assert abs(float(re.search(r"count: (-?[\d.]+)", out)[1]) - truth) < 20 * 6
    assert "standard deviation 20" in out
    assert f"ε = {float(gdp.epsilon(1 / 20, 1e-5)):.3g}" in out
    one = spent(people, name)
    assert ((one > 0) == ((age >= 65) & (city == "Oslo"))).all()

    _, out, _ = run(capsys, f"{name} mean pay --lower 0 --upper 1000 --noise 20")
    assert re.search(r"mean: [\d.]+ ± about \d\d\b", out)
    assert abs(float(re.search(r"mean: ([\d.]+)", out)[1]) - pay.mean()) < 500 * 20 / N * 6
    _, out, _ = run(capsys, f"{name} sum pay --lower 0 --upper 1000 --noise 20000 --where '`two words` == 1'")
    assert (
        abs(float(re.search(r"sum: (-?[\d.]+)", out)[1]) - pay[np.asarray(people["two words"]) == 1].sum())
        < 20000 * 6
    )
    _, out, _ = run(capsys, f"{name} histogram city --categories Bergen,Oslo --noise 20")
    shown = dict(re.findall(r"│ (\w+) +│ +(-?[\d.]+) │", out))
    assert abs(float(shown["Oslo"]) - (city == "Oslo").sum()) < 20 * 6
    _, out, _ = run(capsys, f"{name} histogram age --edges 0,18,65,120 --noise 20")
    assert "18 … 65" in out
    after = spent(people, name)
    assert (after > one).all()
    low, high = math.ulp(1.0), 1 / 400 + 2 / 400 + (1000 / 20000) ** 2 + 2 / 400
    assert ((after > low) & (after <= high * (1 + 1e-6))).all()


def test_nothing_printed_depends_on_who_is_out(capsys, people):
    """The same words before and after everybody's purse is empty; only the number differs."""

    def words(line):
        _, out, err = run(capsys, line)
        return re.sub(r"count: \S+", "count", out) + err

    run(capsys, "people.csv count --noise 400")  # says that it opened purses
    first = words("people.csv count --noise 4.5")
    assert first == words("people.csv count --noise 4.5")
    for _ in range(3):
        again = words("people.csv count --noise 4.5")
    assert first == again
    numbers = [
        float(re.search(r"count: (-?[\d.]+)", run(capsys, "people.csv count --noise 4.5")[1])[1]) for _ in range(3)
    ]
    assert max(map(abs, numbers)) < 4.5 * 7  # nobody is left


def test_persons_and_one_epsilon_for_all(capsys, people):
    code, out, err = run(capsys, "people.csv --epsilon 2 --person who --seed 1 count --noise 0.9")
    assert (code, err) == (0, "")
    assert "NOT private" in out
    code, out, _ = run(capsys, "people.parquet --epsilon 50 --person who --seed 1 count --noise 0.9")
    assert abs(float(re.search(r"count: (-?[\d.]+)", out)[1]) - len(set(people["who"].to_pylist()))) < 6


@pytest.mark.parametrize(
    ("ids", "persons"),
    [
        (("01", "1", " 1"), 2),  # space around an id does not count; 01 is not 1
        (("9223372036854775808", "9223372036854775809", "5"), 3),  # as numbers the first two would be one
        (("2021-01-01", "2021-01-02", "2021-01-01"), 2),  # no dates
        (("1e3", "1000", "true"), 3),
    ],
)
@pytest.mark.parametrize("epsilon", ["1", "granted"])
def test_ids_are_the_same_people_whether_or_not_one_epsilon_is_for_all(capsys, tmp_path, ids, persons, epsilon):
    lines = ["who,granted", *(f"{who},1" for who in ids)]
    (tmp_path / "few.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    code, out, err = run(capsys, f"few.csv --epsilon {epsilon} --person who count --noise 20")
    assert (code, err) == (0, "")
    assert f"new purses for {persons} people" in out


def test_new_purses_are_told_once(capsys, people):
    assert "new purses for 400 people: people.csv.purses\n" in run(capsys, "people.csv count --noise 20")[1]
    assert "new purses" not in run(capsys, "people.csv count --noise 20")[1]
    persons = len(set(people["who"].to_pylist()))
    line = "people.csv --epsilon 1 --purses other --person who histogram city --categories Oslo,Bergen --noise 20"
    _, out, _ = run(capsys, line)
    assert f"new purses for {persons} people: other\n" in out
    assert "┃ count ┃" in re.sub(" +", " ", out)
    assert "a person's rows count for at most 1 together" in out


def test_a_mean_of_nobody_says_that_it_is_none(capsys, people):
    _, out, _ = run(capsys, "people.csv --seed 1 mean pay --lower 0 --upper 1000 --noise 2 --where 'age > 200'")
    assert "mean: 500" in out
    assert "the middle of the range, not an answer" in out
    assert "±" not in out


def test_usage_reads_well(capsys):
    with pytest.raises(SystemExit):
        cli.main(["query", "people.csv", "mean"])
    assert "mean COLUMN --lower NUMBER --upper NUMBER (--noise NUMBER | --cost ε)" in capsys.readouterr().err


def test_a_changed_table_or_budget_is_refused(capsys, people, tmp_path):
    assert run(capsys, "people.csv count --noise 20")[0] == 0
    before = (tmp_path / "people.csv.purses").read_bytes()
    code, out, err = run(capsys, "people.csv --epsilon 9 count --noise 20")
    assert (code, out) == (2, "")
    assert "another list of budgets" in err
    text = (tmp_path / "people.csv").read_text()
    (tmp_path / "people.csv").write_text(text.replace("Oslo", "Hamar", 1))
    code, _, err = run(capsys, "people.csv count --noise 20")
    assert code == 2
    assert "another data set" in err
    assert (tmp_path / "people.csv.purses").read_bytes() == before
    assert run(capsys, "people.csv --purses other count --noise 20")[0] == 0
    assert (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("people.csv count --noise 0", "noise"),
        ("people.csv count --noise 1 --where 'ages > 3'", "the columns are age, city"),
        ("people.csv count --noise 1 --where 'age > mean(age)'", "not allowed"),
        ("people.csv mean city --lower 0 --upper 1 --noise 1", "holds text"),
        ("people.csv histogram city --edges 0,1 --noise 1", "give --categories instead of --edges"),
        ("people.csv histogram city --categories Oslo,Oslo --noise 1", "--categories holds a value twice"),
        ("people.csv histogram age --edges 3,1 --noise 1", "--edges must be"),
        ("people.csv --epsilon budget count --noise 1", "no column 'budget'"),
        ("people.csv --epsilon 1 --person whom count --noise 1", "no column 'whom'"),
        ("people.csv --purses people.csv count --noise 1", "table itself"),
        ("people.csv --purses age.txt count --noise 1", "holds no purses"),
        ("nobody.csv count --noise 1", "does not exist"),
        ("people.txt count --noise 1", "does not exist"),
        ("people.csv --purses no/where count --noise 1", "cannot be opened"),
    ],
)
def test_errors_say_what_to_mend(capsys, people, tmp_path, line, said):
    (tmp_path / "age.txt").write_text("notes")
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert said in err
    assert (tmp_path / "age.txt").read_text() == "notes"


def test_a_full_disk_tells_nothing(capsys, people, monkeypatch):
    def full(*_):
        raise OSError("disk full")

    run(capsys, "people.csv count --noise 20")  # opens the purses
    monkeypatch.setattr("os.pwrite", full)
    code, out, err = run(capsys, "people.csv count --noise 20")
    assert (code, out) == (2, "")
    assert "disk full" in err
    assert "nothing is told" in err


def test_another_holder_is_told_to_wait(capsys, people, tmp_path):
    with closing(PurseFile(tmp_path / "people.csv.purses", {})):
        code, _, err = run(capsys, "people.csv count --noise 20")
    assert code == 2
    assert "somebody else holds" in err


def test_the_examples_in_the_help_run(capsys, tmp_path, monkeypatch):
    with pytest.raises(SystemExit):
        cli.main(["query", "--help"])
    shown = capsys.readouterr().out
    made = re.search(r"python3 -c '(.*?)' > people.csv", shown, re.DOTALL)[1]
    exec(compile(made, "help", "exec"), {})
    (tmp_path / "people.csv").write_text(capsys.readouterr().out)
    rng = np.random.default_rng(0)
    pq.write_table(pa.table({"patient": rng.integers(0, 9, 50), "cost": rng.random(50) * 900}), "visits.parquet")
    examples = re.findall(r"^  privypurse query (.*)$", shown, re.MULTILINE)
    assert len(examples) == 8
    made = pp.Ledger.create("sqlite:///purses.db", epsilons=[1], delta=1e-5, key="ledger.key")
    made.join(np.arange(9), 1.0)
    for line in examples:
        if line == examples[-1]:
            for name, value in re.findall(r"(PRIVYPURSE_\w+)=(\S+)", shown):
                monkeypatch.setenv(name, value)
        code, out, _ = run(capsys, line)
        assert code == 0
        assert "not an answer" not in out
    assert [one.purpose for one in made.runs()] == ["to plan wards"]


def test_csv_cells_are_told_apart(tmp_path):
    (tmp_path / "odd.csv").write_text("a,b,c,d,e,f\n1,1.5,true,2024-01-31,x,\n,nan,,,,\n 3 ,,false,2024-02-01,3,\n")
    table = read_table(tmp_path / "odd.csv")
    assert table["a"][0] == 1
    assert np.isnan(table["a"][1])
    assert table["d"].dtype.kind == "M"
    assert table["e"].tolist() == ["x", None, "3"]
    with Analyst(table, pp.Budgets([500.0] * 3)) as asks:  # who cannot pay for so little noise would not be counted
        assert abs(float(asks.count("a >= 1 and c != False or e == '3'", noise=0.1)) - 2) < 0.1 * 7
        assert abs(float(asks.count("e == 'y'", noise=0.1))) < 0.1 * 7


def test_an_answer_can_be_written_as_a_public_file(capsys, people, tmp_path):
    code, out, _ = run(capsys, "people.csv --json --out asked count --noise 20")
    assert code == 0
    opened = RunFolder.open("asked")
    assert (opened.command, {name: file.public for name, file in opened.files.items()}) == (
        "query",
        {"answer.json": True},
    )
    assert json.loads((tmp_path / "asked" / "answer.json").read_text(encoding="utf-8")) == json.loads(out)
    before = (tmp_path / "people.csv.purses").read_bytes()
    code, _, err = run(capsys, "people.csv --out asked count --noise 20")
    assert code == 2
    assert "already holds the answer.json" in err
    assert (tmp_path / "people.csv.purses").read_bytes() == before  # nobody paid
    assert run(capsys, "people.csv --purses other --out seeded --seed 1 count --noise 20")[0] == 0
    assert [file.public for file in RunFolder.open("seeded").files.values()] == [False]


@pytest.fixture
def ledger(people, monkeypatch):
    """Of the people in the table, half of whom grant 0.5 and half 1."""
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", "ledger.key")
    made = pp.Ledger.create("sqlite:///purses.db", epsilons=[0.5, 1], delta=1e-5, key="ledger.key")
    who = sorted(set(people["who"].to_pylist()))
    made.join(who, np.where(np.arange(len(who)) % 2, 1.0, 0.5))
    return made


UNDER = "people.csv --person who --ledger sqlite:///purses.db"


def test_a_question_under_a_ledger_is_charged_there_for_whatever_rows(capsys, people, ledger, tmp_path):
    who = sorted(set(people["who"].to_pylist()))
    code, out, err = run(capsys, f"{UNDER} --purpose 'to plan wards' --json --out asked count --noise 4")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    # At noise 4 a count costs 16/(2·16) = 0.5 nats at order 16: more than ε = 1 holds, so nobody is counted.
    assert abs(answer["value"]) < 4 * 7
    assert {name: file.public for name, file in RunFolder.open("asked").files.items()} == {
        "answer.json": True,
        "anchor.json": False,
    }
    head = json.loads((tmp_path / "asked" / "anchor.json").read_text())
    assert ledger.show().head in head.values()
    lines = (tmp_path / "people.csv").read_text().splitlines()
    (tmp_path / "people.csv").write_text("\n".join([lines[0], *lines[:0:-1]]).replace("Oslo", "Hamar") + "\n")
    values = []
    for _ in range(4):
        code, out, err = run(capsys, f"{UNDER} count --noise 6")
        assert (code, err) == (0, "")
        assert f"spending is kept in the ledger {ledger.id}" in out
        values.append(float(re.search(r"count: (-?[\d.]+)", out)[1]))
    # Each costs 16/72 = 0.222 nats of 0.48 at ε = 1, and 28/72 = 0.389 of 0.233 at ε = 0.5.
    held = [rung.limit / 2**40 // (rung.order / 72) for rung in ledger.rungs]
    assert held == [0, 2]
    expected = [len(who) // 2] * 2 + [0] * 2
    assert np.abs(np.subtract(values, expected)).max() < 6 * 7
    spent_by = [sum(event.charged[1] for event in ledger.history(one) if event.charged) for one in who[:2]]
    assert spent_by[0] == 0 < spent_by[1] <= ledger.rungs[1].limit
    assert {run.purpose for run in ledger.runs()} == {"to plan wards", ""}
    assert ledger.verify().problems == []
    assert not (tmp_path / "people.csv.purses").exists()


def test_nothing_printed_under_a_ledger_depends_on_who_is_out(capsys, people, ledger, monkeypatch):
    monkeypatch.setenv("PRIVYPURSE_LEDGER", "sqlite:///purses.db")  # instead of --ledger
    shown = set()
    for _ in range(4):
        code, out, err = run(capsys, "people.csv --person who count --noise 6")
        assert (code, err) == (0, "")
        shown.add(re.sub(r"count: \S+", "count", out))
    assert len(shown) == 1
    assert len(ledger.runs()) == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("people.csv --ledger sqlite:///purses.db count --noise 9", "give --person"),
        (f"{UNDER} --epsilon 1 count --noise 9", "leave them out"),
        (f"{UNDER} --purses other count --noise 9", "give one of them"),
        (f"{UNDER} --key nowhere.key count --noise 9", "nowhere.key cannot be read"),
        ("people.csv --person age --ledger sqlite:///purses.db count --noise 9", "never joined this ledger"),
        ("people.csv --person who --ledger sqlite:///none.db count --noise 9", "is not there"),
        ("people.csv --purpose wards count --noise 9", "give --ledger too"),
    ],
)
def test_errors_under_a_ledger_say_what_to_mend(capsys, people, ledger, line, said):
    ledger.withdraw([0])
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert said in err
    assert not ledger.runs()
