"""The same ledger on a real PostgreSQL: tables, histories, crashes, and many writers at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import crashes
import histories
import history_steps
import numpy as np
import pytest
import sqlalchemy as sa
import working_copies
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import components
import postgres_server
import privypurse as pp
from privypurse.ledger import entries
from privypurse.ledger.schema import METADATA

pytestmark = [pytest.mark.postgres, pytest.mark.needs("postgres")]
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    components.require("postgres")
    with postgres_server.server() as url:
        yield url


@pytest.fixture
def url(server: str) -> str:
    return postgres_server.database(server, "purses")


def flat(*units: int) -> np.ndarray:
    return np.repeat(np.array(units)[:, None], 3, axis=1)


@pytest.fixture
def ledger(url: str) -> pp.Ledger:
    made = pp.Ledger.create(url, [(0.5, 1e-5), (1.0, 1e-5), (4.0, 1e-5)], key=KEY)
    made.join(["a", "b", "c"], [0.5, 1.0, 4.0])
    return made


def test_migrations_make_the_tables_that_the_code_knows(ledger: pp.Ledger) -> None:
    with ledger._database.reader() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


@pytest.mark.parametrize("table", ["ledger", "person", "entry", "block"])
@pytest.mark.parametrize("change", ["DELETE FROM {}", "TRUNCATE {} CASCADE", "UPDATE {} SET {} = {}"])
def test_what_is_written_cannot_be_changed(ledger: pp.Ledger, table: str, change: str) -> None:
    column = {"ledger": "id", "person": "keyed", "entry": "meta", "block": "payload"}[table]
    statement = change.format(table, column, column)
    with pytest.raises(pp.PrivyPurseError, match="append-only"), ledger._database.writer() as connection:
        connection.execute(sa.text(statement))


def test_a_life(ledger: pp.Ledger, tmp_path: Path) -> None:
    people = ledger.members(["c", "a", "b"])
    run = ledger.reserve("one", people, flat(9, 5), [0, 1, -1], at_most=0.1)
    assert run.admitted.tolist() == [True, True, False]
    run.settle(flat(4), [0, 0, -1])
    ledger.charge("two", people, flat(10**13, 1), [1, 1, 0])
    ledger.change(["a"], 4.0)
    assert ledger.verify().problems == []
    ledger.backup(tmp_path / "backup.db")
    copy = pp.Ledger.open(f"sqlite:///{tmp_path / 'backup.db'}", key=KEY)
    assert copy.show() == ledger.show()
    assert copy.verify() == ledger.verify()
    assert (copy.room(people) == ledger.room(people)).all()
    again = pp.Ledger.open(str(ledger._database), key=KEY)
    assert (again.public_room(people) == ledger.public_room(people)).all()
    with pytest.raises(pp.InvalidInput, match="has a ledger already"):
        pp.Ledger.create(str(ledger._database), [(1.0, 1e-5)], key=KEY)


def test_a_connection_that_breaks_is_told_and_leaves_nothing(ledger: pp.Ledger, server: str) -> None:
    import psycopg

    before = ledger.show()

    def broken_off() -> None:
        with ledger._writing() as connection:
            entries.append(connection, "note", {})
            with psycopg.connect(server, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'purses'")
            entries.append(connection, "note", {})

    with pytest.raises(pp.PrivyPurseError, match="could not be written"):
        broken_off()
    assert ledger.show() == before
    assert ledger.charge("one", ledger.members(["a"]), flat(1), [0]).admitted.all()


def rush(url: str, number: int, paid: multiprocessing.Queue[bool]) -> None:
    ledger = pp.Ledger.open(url, key=KEY)
    people = ledger.members(["b"])
    paid.put(bool(ledger.charge(f"run {number}", people, flat(ledger.rungs[1].limit), [0]).admitted[0]))


def test_of_many_writers_at_once_one_is_paid(ledger: pp.Ledger, url: str) -> None:
    context = multiprocessing.get_context("fork")
    paid: multiprocessing.Queue[bool] = context.Queue()
    writers = [context.Process(target=rush, args=(url, number, paid)) for number in range(6)]
    for writer in writers:
        writer.start()
    found = [paid.get(timeout=300) for _ in writers]
    for writer in writers:
        writer.join()
    assert sum(found) == 1
    assert ledger.verify().problems == []


def test_whatever_isolation_is_the_servers_default_writers_see_each_other(ledger: pp.Ledger, url: str) -> None:
    """With a view from before it had the lock a writer would find the purse full, and its number taken."""
    with ledger._database.engine.connect() as connection:
        for setting in ("default_transaction_isolation TO 'repeatable read'", "synchronous_commit TO 'off'"):
            connection.execute(sa.text(f"ALTER DATABASE purses SET {setting}"))
        connection.commit()
    ledger._database.engine.dispose()
    test_of_many_writers_at_once_one_is_paid(ledger, url)


def test_histories(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pp.Ledger.create(postgres_server.database(server, "first"), histories.GRANTS, key=histories.KEY)
    first.join([f"filler {number}" for number in range(histories.FILLERS)], 1.0)
    first._database.engine.dispose()

    def make(folder: Path) -> str:
        return postgres_server.database(server, "histories", "first")

    monkeypatch.setattr(histories, "MAKE", make)
    chosen = settings(
        max_examples=60,
        stateful_step_count=50,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(history_steps.Steps, settings=chosen)


def test_killed_two_hundred_times(url: str) -> None:
    pp.Ledger.create(url, [(8.0, 1e-5)], key=crashes.KEY)
    crashes.survive(url, 200)


@pytest.mark.parametrize("seed", range(5))
def test_no_step_is_released_twice_from_copies_of_a_folder(ledger: pp.Ledger, seed: int) -> None:
    released = working_copies.history(ledger, seed)
    assert len(set(released)) == len(released)
    assert ledger.verify().problems == []
