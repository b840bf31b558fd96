"""privypurse query: from a file of people to private answers whose cost adds up."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import privypurse as pp
from privypurse import cli
from privypurse.accounting import gdp
from privypurse.queries.table_ledger import opened
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


def spent(name="people.csv", ids=range(N)):
    """Of everybody, by row unless ids are given, in nats at the order for ε = 1."""
    ledger = opened(Path(f"{name}.ledger"))
    assert ledger.verify().problems == []
    return ledger.spent(ledger.members(list(ids)))[:, 0] * 2.0**-40


@pytest.mark.slow
@pytest.mark.parametrize("name", ["people.csv", "people.parquet"])
def test_answers_near_the_truth_and_costs_that_add_up(capsys, people, name):
    age, city, pay = (np.asarray(people[key]) for key in ("age", "city", "pay"))
    code, out, err = run(capsys, f"""{name} count --where "age >= 65 and city == 'Oslo'" --noise 20""")
    assert (code, err) == (0, "")
    truth = int(((age >= 65) & (city == "Oslo")).sum())
    assert abs(float(re.search(r"count: (-?[\d.]+)", out)[1]) - truth) < 20 * 6
    assert "standard deviation 20" in out
    assert f"ε = {float(gdp.epsilon(1 / 20, 1e-5)):.3g}" in out
    one = spent(name)
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
    after = spent(name)
    assert (after > one).all()
    # α·r²/2 with α = 16: a count, a mean, two histograms with noise 20, and the sum; norms rounded up by 0.2 %.
    high = 8 * (1 / 400 + 2 / 400 + (1000 / 20000) ** 2 + 2 / 400)
    assert (after <= high * 1.005).all()


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
    code, out, err = run(capsys, "people.csv --epsilon 2 --person who --seed 1 count --noise 9")
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
    out = run(capsys, "people.csv count --noise 20")[1]
    assert "new purses for 400 rows, known by their number for good (--person COLUMN" in out
    assert "\nspending is kept in people.csv.ledger; keep it, its key" in out
    assert "new purses" not in run(capsys, "people.csv count --noise 20")[1]
    persons = len(set(people["who"].to_pylist()))
    line = "people.parquet --epsilon 1 --person who histogram city --categories Oslo,Bergen --noise 20"
    _, out, _ = run(capsys, line)
    assert f"new purses for {persons} people\n" in out
    assert "┃ count ┃" in re.sub(" +", " ", out)
    assert "a person's rows count for at most 1 together" in out


def test_a_mean_of_nobody_says_that_it_is_none(capsys, people):
    _, out, _ = run(capsys, "people.csv --seed 1 mean pay --lower 0 --upper 1000 --noise 20 --where 'age > 200'")
    assert "mean: 500" in out
    assert "the middle of the range, not an answer" in out
    assert "±" not in out


def test_usage_reads_well(capsys):
    with pytest.raises(SystemExit):
        cli.main(["query", "people.csv", "mean"])
    assert "mean COLUMN --lower NUMBER --upper NUMBER (--noise NUMBER | --cost ε)" in capsys.readouterr().err


def test_by_row_a_changed_table_or_budget_is_refused(capsys, people, tmp_path):
    assert run(capsys, "people.csv count --noise 20")[0] == 0
    before = spent()
    for line, said in (
        ("people.csv --epsilon 9 count --noise 20", "made for ε: column 'epsilon', not 9.0"),
        ("people.csv --epsilon 1 --person who count --noise 20", "made for people: rows by number, not column 'who'"),
    ):
        code, out, err = run(capsys, line)
        assert (code, out) == (2, "")
        assert said in err
    text = (tmp_path / "people.csv").read_text()
    (tmp_path / "people.csv").write_text(text.replace("Oslo", "Hamar", 1))
    code, _, err = run(capsys, "people.csv count --noise 20")
    assert code == 2
    assert "known there by number" in err
    assert "--person COLUMN" in err
    assert (spent() == before).all()


def test_by_id_the_table_may_change_and_who_is_new_joins(capsys, tmp_path):
    """One new customer, one changed cell or another row order, and the way on was full purses again."""
    lines = [f"C{k},{20 + k},{1 + k % 2}" for k in range(50)]

    def asked(rows):
        (tmp_path / "shop.csv").write_text("\n".join(["id,age,epsilon", *rows]) + "\n")
        return run(capsys, "shop.csv --person id count --noise 20")

    ids = [f"C{k}" for k in range(50)]
    assert asked(lines)[0] == 0
    once = spent("shop.csv", ids)
    assert np.ptp(once) == 0 < once[0]
    assert asked([*lines[:7], "C7,99,2", *lines[8:]])[0] == 0
    assert asked(lines[::-1])[0] == 0
    code, out, _ = asked([*lines[3:], "D1,44,1", "D2,45,1"])
    assert code == 0
    assert "new people with full purses: 2\n" in out
    assert spent("shop.csv", ids) == pytest.approx([3 * once[0]] * 3 + [4 * once[0]] * 47)
    assert spent("shop.csv", ["D1", "D2"]) == pytest.approx(once[:2])
    assert asked(lines)[0] == 0
    code, _, err = run(capsys, "shop.csv --person age count --noise 20")
    assert code == 2
    assert "made for people: column 'id', not column 'age'" in err
    code, _, err = asked([*lines, lines[0].replace(",1", ",2")])
    assert code == 2
    assert "C0" in err


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
        ("people.csv --key some.key count --noise 1", "--key is for a ledger that --ledger names"),
        ("people.csv --anchor some.json count --noise 1", "--anchor is for a ledger that --ledger names"),
        ("nobody.csv count --noise 1", "does not exist"),
        ("people.txt count --noise 1", "does not exist"),
    ],
)
def test_errors_say_what_to_mend(capsys, people, line, said):
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert said in err
    assert not Path("people.csv.ledger").exists()  # beside which a training would be refused


_FULL = """
import resource, signal, sys
from privypurse import cli
import privypurse.queries.table_ledger, privypurse.ledger.ledger
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.exit(cli.main(["query", "people.csv", "count", "--noise", "20"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("begun", [True, False])
def test_a_full_disk_tells_nothing(capsys, people, begun):
    """No file may grow beyond 4,096 bytes: neither the first question's ledger nor a later one's entry fits."""
    if begun:
        run(capsys, "people.csv count --noise 20")
    done = subprocess.run([sys.executable, "-c", _FULL, "4096"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search("disk .*: the ledger .* could not be (read|written)", done.stderr)
    if begun:
        assert len(opened(Path("people.csv.ledger")).runs()) == 1
        return
    assert not list(Path().glob(".*ledger*"))
    assert run(capsys, "people.csv count --noise 20")[0] == 0  # once there is room


def test_a_folder_that_cannot_be_written_to_makes_no_ledger(capsys, people, monkeypatch):
    def read_only(self):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("privypurse.ledger.database.os.open", lambda *_: read_only(_))
    code, out, err = run(capsys, "people.csv count --noise 20")
    assert (code, out) == (2, "")
    assert "Read-only file system" in err
    assert not list(Path().glob("*ledger*"))


def test_a_ledger_that_is_gone_between_two_questions_is_not_begun_anew(capsys, people):
    assert run(capsys, "people.csv count --noise 20")[0] == 0
    Path("people.csv.ledger").rename("elsewhere")
    code, out, err = run(capsys, "people.csv count --noise 20")
    assert (code, out) == (2, "")
    assert "missing beside its anchor" in err
    Path("elsewhere").rename("people.csv.ledger")
    assert run(capsys, "people.csv count --noise 20")[0] == 0
    assert len(opened(Path("people.csv.ledger")).runs()) == 2


@pytest.mark.slow
def test_the_examples_in_the_help_run(capsys, tmp_path, monkeypatch):
    with pytest.raises(SystemExit):
        cli.main(["query", "--help"])
    shown = capsys.readouterr().out
    made = re.search(r"python3 -c '(.*?)' > people.csv", shown, re.DOTALL)[1]
    exec(compile(made, "help", "exec"), {})
    (tmp_path / "people.csv").write_text(capsys.readouterr().out)
    rng = np.random.default_rng(0)
    for name in ("visits.parquet", "stays.parquet"):
        pq.write_table(pa.table({"patient": rng.integers(0, 9, 50), "cost": rng.random(50) * 900}), name)
    examples = re.findall(r"^  privypurse query (.*)$", shown, re.MULTILINE)
    assert len(examples) == 8
    made = pp.Ledger.create("sqlite:///purses.db", epsilons=[1], key="ledger.key", anchor="anchor.json")
    made.join(np.arange(9), 1.0)
    for line in examples:
        if line == examples[-1]:
            for name, value in re.findall(r"(PRIVYPURSE_\w+)=(\S+)", shown):
                monkeypatch.setenv(name, value)
        code, out, _ = run(capsys, line)
        assert code == 0
        assert "not an answer" not in out
    assert [one.purpose for one in made.runs()] == ["to plan wards"]


def test_an_answer_can_be_written_as_a_public_file(capsys, people, tmp_path):
    code, out, _ = run(capsys, "people.csv --json --out asked count --noise 20")
    assert code == 0
    opened = RunFolder.open("asked")
    assert (opened.command, {name: file.public for name, file in opened.files.items()}) == (
        "query",
        {"answer.json": True, "question.json": False, "anchor.json": False},
    )
    assert {each.what for each in pp.verify("asked").of("fits")} == {"files", "cost", "noise"}
    assert json.loads((tmp_path / "asked" / "answer.json").read_text(encoding="utf-8")) == json.loads(out)
    assert json.loads(out)["unit"] == "record"  # without --person: nothing is promised to whoever has two
    before = spent()
    code, _, err = run(capsys, "people.csv --out asked count --noise 20")
    assert code == 2
    assert "already holds the answer.json" in err
    assert (spent() == before).all()  # nobody paid
    assert run(capsys, "people.csv --out seeded --seed 1 count --noise 20")[0] == 0
    assert [file.public for file in RunFolder.open("seeded").files.values()] == [False] * 3


def test_categories_of_a_text_column_are_text_though_they_look_like_numbers(capsys, tmp_path):
    """One mark of a missing cell makes a column of codes text, and its categories are still 0 and 1."""
    rows = "".join(f"p{number},{number % 4 // 3}\n" for number in range(400))
    (tmp_path / "codes.csv").write_text(f"who,fbs\nq,?\n{rows}", encoding="utf-8")
    code, out, err = run(capsys, "codes.csv --json --person who --epsilon 1 histogram fbs --categories 0,1 --noise 5")
    assert code == 0, err
    assert np.abs(np.array(json.loads(out)["value"]) - [300, 100]).max() < 5 * 7


def test_a_category_beyond_all_floats_counts_nobody(capsys, people):
    line = f"--seed 1 --json histogram pay --categories 1,{10**400} --noise 5"
    code, out, err = run(capsys, f"people.parquet --epsilon epsilon {line}")
    assert code == 0, err
    assert np.abs(json.loads(out)["value"]).max() < 5 * 7


def test_a_public_answer_says_nothing_of_what_one_person_grants(capsys, tmp_path):
    """The rungs of a table's own ledger are its people's ε (rule 6): whoever has the table is told, a page is not."""
    shown, kept = [], []
    for name, epsilon in (("one", 0.37), ("other", 3.0)):
        rows = "".join(f"p{number},3\n" for number in range(300))
        (tmp_path / f"{name}.csv").write_text(f"who,epsilon\nc7,{epsilon}\n{rows}", encoding="utf-8")
        code, out, err = run(
            capsys, f"{name}.csv --person who --epsilon epsilon --ledger none --out {name} count --noise 9"
        )
        assert code == 0, err
        shown.append(" ".join(out.split()))
        answer = json.loads((tmp_path / name / "answer.json").read_text(encoding="utf-8"))
        kept.append({key: said for key, said in answer.items() if key not in ("value", "released")})
    assert "whoever allows ε = 0.37 cannot pay for this" in shown[0]
    assert "cannot pay" not in shown[1]
    assert kept[0] == kept[1]
    for name, said in (
        ("one", "whoever allows ε = 0.37 cannot pay for this, even with a full purse\n"),
        ("other", ""),
    ):
        code, out, err = run(
            capsys, f"{name}.csv --person who --epsilon epsilon --ledger none --json count --noise 9"
        )
        assert (code, json.loads(out)["note"], err) == (0, "", said)  # for who asks, in no file


@pytest.fixture
def ledger(people, monkeypatch):
    """Of the people in the table, half of whom grant 0.5 and half 1."""
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", "ledger.key")
    made = pp.Ledger.create("sqlite:///purses.db", epsilons=[0.5, 1], delta=1e-5, key="ledger.key")
    who = sorted(set(people["who"].to_pylist()))
    made.join(who, np.where(np.arange(len(who)) % 2, 1.0, 0.5))
    return made


UNDER = "people.csv --person who --ledger sqlite:///purses.db"


def test_how_to_answer_may_be_said_before_the_question_or_after_it(people, capsys, tmp_path):
    code, out, _ = run(capsys, "people.csv count --noise 20 --json --out asked --purpose wards")
    assert code == 0
    assert json.loads((tmp_path / "asked" / "answer.json").read_text(encoding="utf-8")) == json.loads(out)
    code, out, _ = run(capsys, "people.csv --json --purpose buses histogram age --edges 0,50,100 --noise 20")
    assert code == 0
    assert len(json.loads(out)["value"]) == 2
    assert [each.purpose for each in opened(Path("people.csv.ledger")).runs()] == ["wards", "buses"]


def test_a_question_under_a_ledger_is_charged_there_for_whatever_rows(capsys, people, ledger, tmp_path):
    who = sorted(set(people["who"].to_pylist()))
    # At noise 4 a count costs 16/(2·16) = 0.5 nats at order 16: more than ε = 1 holds, so nobody would be counted.
    code, out, err = run(capsys, f"{UNDER} count --noise 4")
    assert (code, out) == (2, "")
    assert "noise alone would be told; take a --noise of 4.0" in err
    asked = "count --noise 6 --where 'age > 200'"  # nobody, and nobody pays
    code, out, err = run(capsys, f"{UNDER} --purpose 'to plan wards' --json --out asked {asked}")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["unit"] == "person"
    assert answer["note"] == "whoever allows ε = 0.5 cannot pay for this, even with a full purse"
    assert abs(answer["value"]) < 6 * 7
    assert {name: file.public for name, file in RunFolder.open("asked").files.items()} == {
        "answer.json": True,
        "question.json": False,
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
    assert not (tmp_path / "people.csv.ledger").exists()


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
        (f"{UNDER} --key nowhere.key count --noise 9", "nowhere.key cannot be read"),
        ("people.csv --person age --ledger sqlite:///purses.db count --noise 9", "never joined this ledger"),
        ("people.csv --person who --ledger sqlite:///none.db count --noise 9", "is not there"),
    ],
)
def test_errors_under_a_ledger_say_what_to_mend(capsys, people, ledger, line, said):
    ledger.withdraw([0])
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert said in err
    assert not ledger.runs()
