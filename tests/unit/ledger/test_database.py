"""Databases that are not what they should be: a clear error, and nothing charged by halves."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import privypurse as pp
from privypurse.ledger import database, entries
from privypurse.ledger.schema import METADATA

KEY = bytes(range(32))
ONE = np.ones((1, 3), dtype=np.int64)


def file_of(ledger: pp.Ledger) -> Path:
    assert ledger._database.path is not None
    return ledger._database.path


def test_migrations_make_the_tables_that_the_code_knows(ledger: pp.Ledger) -> None:
    with ledger._database.reader() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        assert connection.execute(sa.text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(sa.text("PRAGMA synchronous")).scalar() == 2  # FULL


def test_what_the_driver_says_is_told_as_what_sqlalchemy_says(ledger: pp.Ledger) -> None:
    with pytest.raises(pp.PrivyPurseError, match=r"no such column.*could not be read"):  # noqa: SIM117
        with ledger._database.reader() as connection:
            connection.connection.cursor().execute("SELECT keyhole FROM person")


def test_tables_of_a_newer_version_are_refused(ledger: pp.Ledger) -> None:
    with sqlite3.connect(file_of(ledger)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(pp.InvalidInput, match=r"newer version.*9999"):
        pp.Ledger.open(str(ledger._database), key=KEY)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("purses.db", "sqlite:///FILE"),
        ("sqlite://", "keeps nothing"),
        ("sqlite:///:memory:", "keeps nothing"),
        ("mysql://host/purses", "'mysql'"),
        ("sqlite:////nowhere/at/all.db", "not there"),
    ],
)
def test_urls_that_lead_nowhere(url: str, said: str) -> None:
    with pytest.raises(pp.InvalidInput, match=said):
        pp.Ledger.open(url, key=KEY)


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "empty.db").close()
    (tmp_path / "empty.db").touch()
    with pytest.raises(pp.InvalidInput, match="holds no ledger"):
        pp.Ledger.open(f"sqlite:///{tmp_path / 'empty.db'}", key=KEY)
    (tmp_path / "text.db").write_text("no database at all, but long enough to look at" * 100)
    with pytest.raises(pp.PrivyPurseError, match="not a database"):
        pp.Ledger.open(f"sqlite:///{tmp_path / 'text.db'}", key=KEY)
    with pytest.raises(pp.InvalidInput, match="no file"):
        pp.Ledger.open(f"sqlite:///{tmp_path}", key=KEY)


def test_a_ledger_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'purses.db'}"
    with pytest.raises(pp.InvalidInput, match="adversary is 'nobody'"):
        pp.Ledger.create(url, [(1.0, 1e-5)], key=KEY, adversary="nobody")
    with pytest.raises(pp.InvalidInput, match="rungs="):
        pp.Ledger.create(url, key=KEY)
    with pytest.raises(pp.InvalidInput, match="such a folder"):
        pp.Ledger.create("sqlite:////nowhere/at/all.db", [(1.0, 1e-5)], key=KEY)
    monkeypatch.setattr(entries, "entry_hash", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pp.Ledger.create(url, [(1.0, 1e-5)], key=KEY)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    made = pp.Ledger.create(url, epsilons=[0.5, 1.0], delta=1e-6, adversary="public", key=KEY)
    assert [(rung.epsilon, rung.delta) for rung in made.rungs] == [(0.5, 1e-6), (1.0, 1e-6)]
    assert file_of(made).stat().st_mode & 0o777 == 0o600
    with pytest.raises(pp.InvalidInput, match="there already"):
        pp.Ledger.create(url, [(1.0, 1e-5)], key=KEY)


def test_a_file_that_others_can_read_is_closed_to_them(ledger: pp.Ledger) -> None:
    os.chmod(file_of(ledger), 0o644)
    pp.Ledger.open(str(ledger._database), key=KEY)
    assert file_of(ledger).stat().st_mode & 0o777 == 0o600


class TestInMidRun:
    @pytest.fixture
    def run(self, ledger: pp.Ledger) -> object:
        ledger.join(["a", "b"], 1.0)
        return ledger.reserve("one", ledger.members(["a", "b"]), 9 * ONE, [0, 0])

    def test_a_database_that_is_gone_is_told_and_none_is_made(self, ledger: pp.Ledger, run: object) -> None:
        file_of(ledger).rename(file_of(ledger).with_name("elsewhere.db"))
        for use in (run.settle, lambda: ledger.recover("one"), ledger.verify):
            with pytest.raises(pp.InvalidInput, match="is not there"):
                use()
        assert not file_of(ledger).exists()
        file_of(ledger).with_name("elsewhere.db").rename(file_of(ledger))
        run.settle(ONE, [0, 0])
        assert ledger.verify().sound

    def test_a_full_disk_leaves_all_as_it_was(
        self, ledger: pp.Ledger, run: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        people = ledger.members(["a", "b"])
        before = ledger.balances(people)

        @sa.event.listens_for(ledger._database.engine, "begin")
        def full(connection: sa.Connection) -> None:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")

        many = np.arange(3 * 60_000).reshape(-1, 3)
        for use in (
            lambda: ledger.charge("two", people, many, [0, 0]),
            lambda: run.settle(9 * np.ones((60_000, 3), dtype=np.int64), [0, 0]),
        ):
            with pytest.raises(pp.PrivyPurseError, match="full"):
                use()
        sa.event.remove(ledger._database.engine, "begin", full)
        assert (ledger.balances(people) == before).all()
        run.settle()
        assert ledger.verify().sound

    def test_a_read_only_database_is_told(
        self, ledger: pp.Ledger, run: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @sa.event.listens_for(ledger._database.engine, "begin")
        def read_only(connection: sa.Connection) -> None:
            connection.exec_driver_sql("PRAGMA query_only = ON")

        with pytest.raises(pp.PrivyPurseError, match="readonly"):
            run.settle()
        sa.event.remove(ledger._database.engine, "begin", read_only)
        run.settle()

    def test_another_writer_is_waited_for_and_then_told(
        self, ledger: pp.Ledger, run: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database, "_WAIT", 0.1)
        other = sqlite3.connect(file_of(ledger), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(pp.PrivyPurseError, match="locked"):
            run.settle()
        other.execute("ROLLBACK")
        other.close()
        assert not run.settle().repeated


def told_to_a_child(prepare: Callable[[], None], use: Callable[[], object]) -> str:
    """What a process of one's own is told that does this after preparing; "" where it is told nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            prepare()
            use()
        except pp.PrivyPurseError as error:
            os.write(writing, str(error).encode())
        except BaseException as error:
            os.write(writing, f"not in words: {error!r}".encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, encoding="utf-8") as said:
        return said.read()


class TestRealDisks:
    @pytest.fixture
    def folder(self) -> Iterator[Path]:
        """Where another user than root may be let in."""
        path = Path(tempfile.mkdtemp())
        yield path
        path.chmod(0o700)
        shutil.rmtree(path)

    @pytest.fixture
    def used(self, ledger: pp.Ledger, folder: Path) -> pp.Ledger:
        shutil.copy(file_of(ledger), folder / "purses.db")
        used = pp.Ledger.open(f"sqlite:///{folder / 'purses.db'}", key=KEY)
        used.join(["a", "b"], 1.0)
        used.reserve("one", used.members(["a", "b"]), 9 * ONE, [0, 0])
        return used

    def uses(self, ledger: pp.Ledger) -> list[Callable[[], object]]:
        people, many = ledger.members(["a", "b"]), np.arange(3 * 60_000).reshape(-1, 3)
        return [
            lambda: ledger.charge("two", people, many, [0, 0]),
            lambda: ledger.reservation("one").settle(np.minimum(many, 9), [0, 0]),
            lambda: ledger.join([f"new {number}" for number in range(30_000)], 1.0),
        ]

    def test_a_file_that_may_not_grow_leaves_all_as_it_was(self, used: pp.Ledger) -> None:
        def full() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

        before, people = used.show(), used.members(["a", "b"])
        left = used.balances(people)
        for use in self.uses(used):
            said = told_to_a_child(full, use)
            assert "could not be written" in said
            assert "charges once" in said
            assert used.show() == before
            assert (used.balances(people) == left).all()
        assert used.verify().problems == []
        for use in self.uses(used):
            assert told_to_a_child(lambda: None, use) == ""

    @pytest.mark.parametrize("folder_too", [False, True])
    def test_a_file_that_may_only_be_read_is_told(self, used: pp.Ledger, folder: Path, folder_too: bool) -> None:
        before = used.show()
        if os.getuid() == 0:  # who may do everything
            for path in (folder, *folder.iterdir()):
                os.chown(path, 65_534, 65_534)
        file_of(used).chmod(0o400)
        folder.chmod(0o500 if folder_too else 0o700)

        def become_nobody() -> None:
            if os.getuid() == 0:
                os.setgid(65_534)
                os.setuid(65_534)

        for use in self.uses(used):
            assert "could not be" in told_to_a_child(become_nobody, use)
        assert used.show() == before
        assert used.verify().problems == []


WRONG = {
    "run_id": (lambda people: ("", people, ONE, [0, 0], None), "run_id"),
    "a number as run_id": (lambda people: (7, people, ONE, [0, 0], None), "run_id"),
    "members by id": (lambda people: ("x", ["a", "b"], ONE, [0, 0], None), "members"),
    "floats": (lambda people: ("x", people, ONE / 2, [0, 0], None), "whole numbers"),
    "other columns": (lambda people: ("x", people, ONE[:, :2], [0, 0], None), "3 columns"),
    "a negative charge": (lambda people: ("x", people, -ONE, [0, 0], None), "negative"),
    "too few classes": (lambda people: ("x", people, ONE, [0], None), "class_of"),
    "a class that is none": (lambda people: ("x", people, ONE, [0, 1], None), "class_of"),
    "floats as classes": (lambda people: ("x", people, ONE, [0.0, 0.0], None), "class_of"),
    "a cap of 0": (lambda people: ("x", people, ONE, [0, 0], 0.0), "at_most"),
    "a cap that is none": (lambda people: ("x", people, ONE, [0, 0], float("nan")), "at_most"),
    "too many classes": (lambda people: ("x", people, np.ones((65_535, 3), int), [0, 0], None), "65,534"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_arguments_are_named_and_nothing_is_written(ledger: pp.Ledger, name: str) -> None:
    ledger.join(["a", "b"], 1.0)
    arguments, said = WRONG[name]
    for use in (ledger.reserve, ledger.charge):
        with pytest.raises(pp.InvalidInput, match=said):
            use(*arguments(ledger.members(["a", "b"])))
    assert ledger.show().entries == 2


def test_people_of_another_ledger_are_refused(ledger: pp.Ledger, tmp_path: Path) -> None:
    other = pp.Ledger.create(f"sqlite:///{tmp_path / 'other.db'}", [(1.0, 1e-5)], key=KEY)
    other.join(["a"], 1.0)
    with pytest.raises(pp.InvalidInput, match="people of this ledger"):
        ledger.charge("x", other.members(["a"]), ONE, [0])


def test_what_the_database_says_names_no_values(ledger: pp.Ledger) -> None:
    """A traceback ends up in logs; what was to be written is in none of it."""
    ledger.join(["a"], 1.0)
    why, where = "a study of allergies", "desk 4"
    with closing(sqlite3.connect(file_of(ledger))) as connection:
        connection.execute("CREATE TRIGGER t BEFORE INSERT ON entry BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        connection.commit()
    with pytest.raises(pp.PrivyPurseError, match="disk full") as raised:
        ledger.change(["a"], 4.0, purpose=why, recorded_by=where)
    told = "".join(traceback.format_exception(raised.value))
    assert "INSERT INTO entry" in told
    assert why not in told
    assert where not in told
