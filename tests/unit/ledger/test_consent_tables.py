"""Tables of consents: mistakes are named by file, column, row and id; several tables are taken in together or not."""

from pathlib import Path

import pytest

import privypurse as pp


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("who,eps\nA1,1\nB2,3\n", r"f\.csv: column 'eps', row 2 below the header \(id 'B2'\) is 3, which is no rung"),
        (
            "who,eps\nA1,1\nB2,1\nA1,1\n",
            r"f\.csv: column 'who', row 3 below the header is 'A1', who is at f\.csv: column 'who', row 1 below",
        ),
        (
            "who,eps,valid_until\nA1,1,\nB2,1,31.12.2027\n",
            r"f\.csv: column 'valid_until', row 2 below the header \(id 'B2'\) is '31\.12\.2027'; write a date as",
        ),
    ],
)
def test_a_mistake_is_named_by_its_place(ledger: pp.Ledger, text: str, said: str) -> None:
    path = written("f.csv", text)
    for dry_run in (True, False):
        with pytest.raises(pp.InvalidInput, match=said) as told:
            ledger.import_table(path, person="who", epsilon="eps", dry_run=dry_run)
        assert "more mistakes" not in str(told.value)
    assert ledger.show().entries == 1


def test_other_mistakes_are_counted(ledger: pp.Ledger) -> None:
    path = written("f.csv", "person,epsilon,valid_until\nA,3,\nB,1,soon\nC,1,2100-01-01\nA,5,never\nD,1,soon\n")
    with pytest.raises(
        pp.InvalidInput, match=r"row 1 .*'A'.* is 3, .*\(5 more mistakes in these rows\); nothing was"
    ):
        ledger.import_table(path)  # of A's second row the ε, the end and the id; the ends of B and D


def test_choices_are_worth_what_levels_say(ledger: pp.Ledger) -> None:
    worth = {"little": 1.0, "much": 4.0}
    path = written("f.csv", "person,consent\nA,much\nB,little\n")
    found = ledger.import_table(path, epsilon="consent", levels=worth, dry_run=False)
    assert found.joining == ("A", "B")
    assert [ledger.rungs[rung].epsilon for rung in ledger.members(["A", "B"]).rung] == [4.0, 1.0]
    written("f.csv", "person,consent\nA,much\nB,SECRET\n")
    with pytest.raises(pp.InvalidInput, match="row 2 below the header holds a text without an ε") as caught:
        ledger.import_table(path, epsilon="consent", levels=worth)
    assert "SECRET" not in str(caught.value)


def test_several_tables_are_one_step(ledger: pp.Ledger) -> None:
    first, second = written("f1.csv", "person,epsilon\nA,1\n"), written("f2.csv", "person,epsilon\nB,1\nC,3\n")
    with pytest.raises(pp.InvalidInput, match=r"f2\.csv.*row 2"):
        ledger.import_tables([first, second], dry_run=False)
    assert not ledger.knows("A")
    written("f2.csv", "person,epsilon\nB,1\nC,4\n")
    found = ledger.import_tables([first, second], dry_run=True)
    assert [one.joining for one in found] == [("A",), ("B", "C")]
    assert not ledger.knows("A")
    assert ledger.import_tables([first, second], dry_run=False) == found
    assert ledger.members(["A", "B", "C"]).rung.tolist() == [1, 1, 2]
    assert ledger.verify().sound


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_id_in_two_tables_is_refused_as_in_one(ledger: pp.Ledger, dry_run: bool) -> None:
    tables = [written("f1.csv", "person,epsilon\nA,1\n"), written("f2.csv", "person,epsilon\nB,1\n A,4\n")]
    with pytest.raises(
        pp.InvalidInput, match=r"f2\.csv.*row 2.*'A', who is at f1\.csv.*row 1 below the header already"
    ):
        ledger.import_tables(tables, dry_run=dry_run)
    assert ledger.show().entries == 1


@pytest.mark.parametrize("header", [" valid_until", "Valid_Until", "valid until", "valid-until", "validUntil"])
def test_an_end_under_a_name_that_is_nearly_right_is_not_passed_over(ledger: pp.Ledger, header: str) -> None:
    """Whoever allowed something until 2030 would have allowed it for ever."""
    path = written("f.csv", f"person,epsilon,{header}\nA,1,2030-12-31\n")
    with pytest.raises(pp.InvalidInput, match=f"f.csv has a column '{header}', which .* call it 'valid_until'"):
        ledger.import_table(path, dry_run=False)
    assert not ledger.knows("A")


def test_ids_that_a_program_wrote_as_floats_are_nobody_new(ledger: pp.Ledger) -> None:
    """1.0 beside 1 would be a second person with a full purse."""
    ledger.import_table(written("f.csv", "person,epsilon\n1,1\n2,1\n"), dry_run=False)
    with pytest.raises(pp.InvalidInput, match=r"f\.csv: column 'person' holds ids .* floats: 1\.0 and 1 "):
        ledger.import_table(written("f.csv", "person,epsilon\n1.0,1\n2.0,1\n"))
    with pytest.raises(pp.InvalidInput, match=r"written as floats"):
        pp.Budgets.read("f.csv", person="person")
    versions = ledger.import_table(written("f.csv", "person,epsilon\n1.0,1\n1.1,1\n"))
    assert versions.joining == ("1.0", "1.1")


def test_what_pandas_has_not_is_empty(ledger: pp.Ledger) -> None:
    import pandas

    purposes = pandas.array(["to plan bus lines", pandas.NA], dtype="string")
    frame = pandas.DataFrame({"person": ["A", "B"], "epsilon": [1.0, 1.0], "purpose": purposes})
    ledger.import_table(frame, dry_run=False)
    assert ledger.history("A")[0].meta["purpose"] == "to plan bus lines"
    assert "purpose" not in ledger.history("B")[0].meta
