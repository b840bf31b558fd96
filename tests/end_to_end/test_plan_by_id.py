"""A plan is its people's: `privypurse plan`, then `privypurse train` on rows shuffled, edited or left out."""

from __future__ import annotations

import csv
import errno
import hashlib
import importlib
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privypurse as pp
from privypurse.cli import main

PEOPLE = 800
CONFIG = """
plan = "plan.json"
[data]
table = "people.csv"
{person}
label = "y"
classes = ["no", "yes"]
[data.features]
x = {{ low = 0, high = 1 }}
[model]
kind = "mlp"
hidden = []
[optimizer]
name = "SGD"
lr = 0.1
[training]
out = "out"
{more}
"""
PLAN = ["--steps", "5", "--batch-size", "80", "--accountant", "rdp"]  # quick; whose it is, is the same
rng = np.random.default_rng(0)
IDS = [f"C{k:04d}" for k in range(PEOPLE)]
EPSILON = dict(zip(IDS, np.where(np.arange(PEOPLE) % 20 < 11, 0.5, 5.0).tolist(), strict=True))
ROWS = {who: (f"{x:.3f}", "yes" if x > 0.5 else "no") for who, x in zip(IDS, rng.uniform(size=PEOPLE), strict=True)}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(IDS)


def write(order: list[str]) -> None:
    with Path("people.csv").open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["id", "x", "y", "epsilon"])
        lines.writerows([who, *ROWS[who], EPSILON[who]] for who in order)


def shuffled() -> list[str]:
    return [IDS[k] for k in rng.permutation(PEOPLE)]


def planned(*more: str) -> None:
    assert main(["plan", "people.csv", *PLAN, "-o", "plan.json", *more]) == 0


def trained(capsys: pytest.CaptureFixture[str], person: str = 'person = "id"', more: str = "") -> tuple[int, str]:
    Path("config.toml").write_text(CONFIG.format(person=person, more=more), encoding="utf-8")
    capsys.readouterr()
    code = main(["train", "config.toml"])
    both = capsys.readouterr()
    return code, " ".join((both.out + both.err).split())


def overdrawn() -> tuple[int, float]:
    """How many people of the table overspend by the plan that a run wrote, and the worst factor."""
    spent = pp.Plan.load("out/plan.json").spent()
    with Path("people.csv").open(encoding="utf-8") as file:
        held = np.array([float(row["epsilon"]) for row in csv.DictReader(file)])
    return int((spent > held).sum()), float((spent / held).max())


def test_rows_in_another_order_overdraw_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """By row: about half of all people, by up to ten times what they granted."""
    planned("--person", "id")
    order = shuffled()
    write(order)
    by_row = pp.Plan.load("plan.json").spent() / np.array([EPSILON[who] for who in order])
    assert (by_row > 1).sum() > PEOPLE * 0.2
    assert by_row.max() > 8
    code, said = trained(capsys)
    assert (code, *overdrawn()[:1]) == (0, 0), said
    assert overdrawn()[1] > 0.9


def test_people_who_are_gone_are_absent_and_said_to_the_owner_only(capsys: pytest.CaptureFixture[str]) -> None:
    planned("--person", "id")
    write(shuffled()[:-10])
    code, said = trained(capsys)
    assert code == 0
    assert (
        "10 planned people have no row in the table: they are absent and contribute nothing. They are 1 % of" in said
    )
    assert "If they are those of test, take their consents out of the file" in said
    assert overdrawn()[0] == 0
    metrics = json.loads(Path("out/metrics.json").read_text(encoding="utf-8"))
    assert metrics["sensitive"].pop("absent") == 10
    assert "absent" not in metrics
    whole, fewer = (pp.Plan.load(path) for path in ("plan.json", "out/plan.json"))
    assert (fewer.noise_multiplier, fewer.batch_size) == (whole.noise_multiplier, whole.batch_size)


def test_strangers_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    write(IDS[:-2])
    planned("--person", "id")
    write(IDS)
    code, said = trained(capsys)
    assert code != 0
    assert "'C0798', 'C0799'" in said
    assert not Path("out/model.pt").exists()


@pytest.mark.slow
def test_what_everybody_spent_is_written_by_id(capsys: pytest.CaptureFixture[str]) -> None:
    planned("--person", "id")
    order = shuffled()
    write(order)
    code, _ = trained(capsys, more="\n[individual]\nevery = 2\n")
    assert code == 0
    with Path("out/spending.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["person"] for row in rows] == order
    for row in rows:
        assert float(row["epsilon_promised"]) <= EPSILON[row["person"]]
        assert 0 <= float(row["epsilon_spent"]) <= float(row["epsilon_promised"])


@pytest.mark.parametrize("change", ["order", "edit", "fewer"])
def test_a_plan_without_ids_holds_for_its_file_alone(change: str, capsys: pytest.CaptureFixture[str]) -> None:
    planned()
    assert "made with ids it would follow people" in " ".join(capsys.readouterr().out.split())
    code, said = trained(capsys, person="")
    assert code == 0, said
    Path("out").rename("first")
    match change:
        case "order":
            write(shuffled())
        case "fewer":
            write(IDS[:-1])
        case "edit":
            text = Path("people.csv").read_text(encoding="utf-8")
            Path("people.csv").write_text(text.replace("yes", "no", 1), encoding="utf-8")
    code, said = trained(capsys, person="")
    assert code != 0
    assert "these are others, or in another order" in said
    assert not Path("out").exists()


def test_a_plan_that_a_run_wrote_is_bound_too(capsys: pytest.CaptureFixture[str]) -> None:
    text = CONFIG.format(person="", more="").replace('plan = "plan.json"\n', "")
    made = text + '\n[budgets]\nepsilon = "epsilon"\n[plan]\nsteps = 5\nbatch_size = 80\naccountant = "rdp"\n'
    Path("config.toml").write_text(made, encoding="utf-8")
    assert main(["train", "config.toml"]) == 0
    assert "δ = 1e-05 for everyone, which is the default" in " ".join(capsys.readouterr().out.split())
    Path("out/plan.json").rename("plan.json")
    Path("out").rename("first")
    write(shuffled())
    code, said = trained(capsys, person="")
    assert code != 0
    assert "these are others" in said


MISMATCHED = {
    "ids, and no column": (["--person", "id"], "", 'name the column of ids: person = "…" under [data]'),
    "a column, and no ids": ([], 'person = "id"', "was made without ids"),
}


@pytest.mark.parametrize("case", MISMATCHED)
def test_plan_and_table_have_to_agree_on_ids(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    options, person, words = MISMATCHED[case]
    planned(*options)
    code, said = trained(capsys, person=person)
    assert code != 0
    assert words in said


def test_a_plan_of_plain_arrays_says_not_whose_rows_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    budgets = pp.Budgets(list(EPSILON.values()))
    pp.plan(budgets, steps=5, batch_size=80, accountant="rdp").save("plan.json")
    code, said = trained(capsys, person="")
    assert code != 0
    assert "does not say whose rows it is for" in said
    code, said = trained(capsys, person="", more='[budgets]\nepsilon = "epsilon"\n')  # compared row by row
    assert code == 0, said
    Path("out").rename("first")
    write(shuffled())
    code, said = trained(capsys, person="", more='[budgets]\nepsilon = "epsilon"\n')
    assert code != 0
    assert "records overspend" in said


def test_an_altered_plan_is_refused_before_anything_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    planned("--person", "id")
    content = json.loads(Path("plan.json").read_text(encoding="utf-8"))
    content["levels"]["rate"] = [1.0, 1.0]
    content.pop("sha256")
    content["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    Path("plan.json").write_text(json.dumps(content), encoding="utf-8")
    code, said = trained(capsys)
    assert code != 0
    assert "the plan spends more than it promises" in said
    assert not Path("out").exists()


def test_a_plan_is_its_owners_whatever_was_there(capsys: pytest.CaptureFixture[str]) -> None:
    planned()
    Path("plan.json").chmod(0o644)
    planned()
    assert stat.S_IMODE(Path("plan.json").stat().st_mode) == 0o600


def test_a_default_delta_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    planned()
    assert "δ = 1e-05 for everyone, which is the default" in " ".join(capsys.readouterr().out.split())
    planned("--delta", "2e-3")
    said = " ".join(capsys.readouterr().out.split())
    assert "which is the default" not in said
    assert "warning: δ = 0.002 is not below 1/800" in said


# ------------------------------------------------------------------------------ a table that is written meanwhile


def meanwhile(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """While that function runs, somebody writes the same people's rows in another order."""
    module, _, function = name.rpartition(".")
    real = getattr(importlib.import_module(module), function)

    def slow(*args: Any, **named: Any) -> Any:
        found = real(*args, **named)
        write(IDS[::-1])
        return found

    monkeypatch.setattr(name, slow)


def test_a_table_replaced_while_a_plan_is_made_does_not_fit_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed after planning, the plan of the old rows would fit the new ones, and about half of all be overdrawn."""
    with monkeypatch.context() as patched:
        meanwhile(patched, "privypurse.cli.plan.made")
        planned()
    code, said = trained(capsys, person="")
    assert code == 2
    assert "these are others, or in another order" in said
    write(IDS)
    assert trained(capsys, person="")[0] == 0


@pytest.mark.parametrize("read", ["records_of", "plan_of"])
@pytest.mark.parametrize("by", ["plan", "budgets"])
def test_a_table_replaced_while_a_run_reads_it_is_refused(
    read: str, by: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features of the old rows would be trained at the rates of the new ones."""
    planned()
    made = CONFIG.format(person="", more="")
    if by == "budgets":
        made = made.replace('plan = "plan.json"', "") + '[budgets]\nepsilon = "epsilon"\n'
        made += '[plan]\nmethod = "sample"\nsteps = 5\nbatch_size = 80\naccountant = "rdp"\n'
    Path("config.toml").write_text(made, encoding="utf-8")
    meanwhile(monkeypatch, f"privypurse.runs.training_run.{read}")
    assert main(["train", "config.toml"]) == 2
    said = capsys.readouterr().err
    assert "changed while it was being read" in said or "these are others" in said
    assert not Path("out/model.pt").exists()


def test_a_table_replaced_while_a_question_reads_it_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, "privypurse.budgets.tables.read_table")
    assert main(["query", "people.csv", "count", "--noise", "30"]) == 2
    assert "changed while it was being read" in capsys.readouterr().err
    assert not Path("people.csv.ledger").exists()


def test_a_full_disk_ends_a_run_with_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback, and no step that was not counted."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    planned("--person", "id")
    monkeypatch.setattr("privypurse.training.journal.Journal.count", full)
    code, said = trained(capsys, more='checkpoint = "kept"')
    assert code == 2
    assert "No space left on device: stopped; steps that were taken stay counted" in said
    assert not Path("out/model.pt").exists()


def test_what_a_plan_says_gives_the_terminal_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    planned("--person", "id")
    content = json.loads(Path("plan.json").read_text(encoding="utf-8"))
    content.pop("sha256")
    content["notes"] = ["\x1b[31mred \x9b2J [bold]as it is[/]"]
    content["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    Path("plan.json").write_text(json.dumps(content), encoding="utf-8")
    code, said = trained(capsys)
    assert code == 0
    assert "\ufffd[31mred \ufffd2J [bold]as it is[/]" in said
    assert not {"\x1b", "\x9b"} & set(said)
