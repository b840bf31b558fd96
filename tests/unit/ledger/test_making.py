"""A new ledger, its key and its anchor: all three are made, or none."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.engine import Connection

import privypurse as pp
from privypurse import cli
from privypurse.ledger.database import Database

INIT = ["ledger", "init", "--epsilons", "1,2"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("PRIVYPURSE_LEDGER", "PRIVYPURSE_LEDGER_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("ledger", "key", "anchor", "said"),
    [
        ("new.db", "nodir/k", "a.json", "the key file nodir/k cannot be written: No such file"),
        ("new.db", "new.key", "nodir/a.json", "the anchor nodir/a.json cannot be written: No such file"),
        ("nodir/new.db", "new.key", "a.json", "new.db cannot be made"),
        ("new.db", "one", "one", "one is there already, so no new anchor"),
    ],
)
def test_where_one_cannot_be_made_nothing_is(
    capsys: pytest.CaptureFixture[str], folder: Path, ledger: str, key: str, anchor: str, said: str
) -> None:
    assert cli.main([*INIT, "--ledger", f"sqlite:///{ledger}", "--key", key, "--anchor", anchor]) == 2
    assert said in capsys.readouterr().err
    assert list(folder.iterdir()) == []
    assert cli.main([*INIT, "--ledger", "sqlite:///new.db", "--key", "new.key", "--anchor", "a.json"]) == 0
    assert {path.name for path in folder.iterdir()} == {"new.db", "new.key", "a.json"}


def test_what_was_there_before_stays(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert cli.main([*INIT, "--ledger", "sqlite:///new.db", "--key", "new.key"]) == 0
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for key, anchor in (("other.key", "a.json"), ("new.key", "a.json"), ("new.key", "new.db")):
        assert cli.main([*INIT, "--ledger", "sqlite:///new.db", "--key", key, "--anchor", anchor]) == 2
        assert "there already" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("more", ["", "--key absent.key", "--key new.key --anchor a.json"])
def test_a_second_ledger_in_its_place_is_told_first_and_how_to_use_the_one_that_is_there(
    capsys: pytest.CaptureFixture[str], folder: Path, more: str
) -> None:
    """Before a key that is missing, or an anchor that is there too."""
    where = ["--ledger", "sqlite:///new.db"]
    assert cli.main([*INIT, *where, "--key", "new.key", "--anchor", "a.json"]) == 0
    capsys.readouterr()
    assert cli.main([*INIT, *where, *more.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {folder / 'new.db'} is there already")
    assert "--ledger sqlite:///new.db" in said
    assert cli.main(["ledger", "show", *where, "--anchor", "a.json"]) == 0


def test_an_anchor_goes_with_a_ledger_that_is_not_committed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next attempt would be refused for it."""
    real = Database.writer

    @contextmanager
    def full(self: Database) -> Iterator[Connection]:
        with real(self) as connection:
            yield connection
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Database, "writer", full)
    with pytest.raises(OSError, match="No space"):
        pp.Ledger.create("sqlite:///new.db", [(1.0, 1e-5)], key="new.key", anchor="a.json")
    assert list(folder.iterdir()) == []


def test_an_anchor_that_cannot_be_begun_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*INIT, "--ledger", "sqlite:///new.db", "--key", "new.key"]) == 0
    options = ["--ledger", "sqlite:///new.db", "--anchor", "nodir/a.json", "--new-anchor"]
    assert cli.main(["ledger", "verify", *options]) == 2
    assert "the anchor nodir/a.json cannot be written" in capsys.readouterr().err


def test_the_delta_is_that_of_the_command_where_none_is_given(tmp_path: Path) -> None:
    made = pp.Ledger.create(f"sqlite:///{tmp_path}/d.db", epsilons=[0.5, 1], key=tmp_path / "d.key")
    assert [rung.delta for rung in made.rungs] == [1e-5, 1e-5]
    with pytest.raises(pp.InvalidInput, match="with one delta="):
        pp.Ledger.create(f"sqlite:///{tmp_path}/e.db", [(1.0, 1e-5)], delta=1e-5, key=tmp_path / "e.key")
