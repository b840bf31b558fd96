"""Whatever is damaged or tampered with in the database is noticed by opening or verifying; what is not, is listed.

The list is in docs/ledger.md: the end of the chain cut off and a chain that was written anew (an anchor tells both),
and what is in the file and read by nobody.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privypurse as pp
from privypurse.ledger import standing
from privypurse.ledger.chain import entry_hash
from privypurse.ledger.schema import METADATA
from privypurse.ledger.standing import SIZE, Standing

KEY = bytes(range(32))
COLUMNS = [(table.name, column.name) for table in METADATA.sorted_tables for column in table.columns]
TABLES = [table.name for table in METADATA.sorted_tables]


def flat(*units: int) -> np.ndarray:
    return np.repeat(np.array(units)[:, None], 3, axis=1)


@pytest.fixture(scope="module")
def lived_in(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All kinds of entries, two blocks of people, and snapshots of both."""
    folder = tmp_path_factory.mktemp("corruption")
    shutil.copy(template, folder / "purses.db")
    ledger = pp.Ledger.open(f"sqlite:///{folder / 'purses.db'}", key=KEY)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(standing, "SNAPSHOT_EVERY", 1)
        ledger.join([f"filler {number}" for number in range(SIZE - 2)], 1.0)
        ledger.join(["a", "b", "c"], [0.5, 1.0, 4.0], valid_until="2100-01-01", purpose="buses")
        who = ledger.members(["a", "b", "c"])
        ledger.reserve("one", who, flat(5, 6), [0, 1, 1], at_most=0.1).settle(flat(3, 4), [0, 1, 1])
        ledger.charge("two", who, flat(5, 9), [0, 1, -1])
        ledger.change(["a"], 1.0)
        ledger.withdraw(["b"])
        ledger.forget(["c"])
        ledger.backup(folder / "old.db")
        ledger.write_anchor(folder / "ahead.json")
        ledger.reserve("three", who, flat(7), [0, 0, 0])
        ledger.reserve("four", who, flat(8), [0, 0, 0])
        ledger.take_over("four", "ann")
        ledger.begin("four", "ann", 5)
        ledger.take_over("four", "bob", known=["ann"])
        ledger.begin("four", "bob", 7)
    assert ledger.verify().problems == []
    return folder / "purses.db"


@pytest.fixture
def file(lived_in: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(lived_in, tmp_path / "purses.db"))


def edited(file: Path, *statements: str, values: tuple[Any, ...] = ()) -> None:
    """By somebody who has the file, and may drop its triggers."""
    with closing(sqlite3.connect(file)) as connection, connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement, values)


def complaints(file: Path, key: bytes | None = KEY, anchor: Path | None = None) -> list[str]:
    """What opening and verifying say; [] where they notice nothing."""
    try:
        return pp.Ledger.open(f"sqlite:///{file}", key=key, anchor=anchor).verify().problems
    except pp.PrivyPurseError as error:
        return [str(error)]


def rows(file: Path, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(f"SELECT rowid, * FROM {table} ORDER BY rowid").fetchall()


def damaged(value: Any, chance: random.Random) -> list[Any]:
    """The value with one bit turned over, or as another kind of thing, or with a piece less."""
    match value:
        case None:
            return ["x", b"x", 1]
        case int():
            return [value ^ 1 << chance.randrange(40), value + 2**20, -1 - value, "no number"]
        case str():
            place = chance.randrange(len(value))
            turned = chr(ord(value[place]) ^ 1)
            return [value[:place] + turned + value[place + 1 :], value[:-1], value + " ", ""]
        case bytes():
            place = chance.randrange(len(value))
            turned = bytes([value[place] ^ 1 << chance.randrange(8)])
            return [value[:place] + turned + value[place + 1 :], value[:-1], value + b"\0", b"", None]
    raise AssertionError(value)


def test_the_ledger_as_it_is_has_no_complaints(file: Path) -> None:
    assert complaints(file) == []
    assert {row[3] for row in rows(file, "entry")} == {
        *("create", "join", "consent", "withdraw", "forget", "reserve", "begin", "settle", "charge")
    }
    assert len(rows(file, "snapshot")) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_a_damaged_value_in_any_column_is_noticed(lived_in: Path, tmp_path: Path, table: str, column: str) -> None:
    chance = random.Random(f"{table} {column}")
    place = 1 + [name for there, name in COLUMNS if there == table].index(column)
    every = rows(lived_in, table)
    planted = 0
    for row in chance.sample(every, min(4, len(every))):
        for value in damaged(row[place], chance):
            if value in (None, b"") and not row[place]:
                continue
            file = Path(shutil.copy(lived_in, tmp_path / "purses.db"))
            try:
                edited(file, f"UPDATE {table} SET {column} = ? WHERE rowid = {row[0]}", values=(value,))
            except sqlite3.IntegrityError:
                continue  # the database itself refuses it
            planted += 1
            assert complaints(file), f"{table}.{column}: {row[place]!r} became {value!r}"
    assert planted


@pytest.mark.parametrize("table", TABLES)
def test_rows_that_are_dropped_doubled_or_exchanged_are_noticed(lived_in: Path, tmp_path: Path, table: str) -> None:
    names = [name for there, name in COLUMNS if there == table]
    every = rows(lived_in, table)
    for row in random.Random(0).sample(every, min(4, len(every))):
        dropped = Path(shutil.copy(lived_in, tmp_path / "dropped.db"))
        edited(dropped, f"DELETE FROM {table} WHERE rowid = {row[0]}")
        last = table == "entry" and row == every[-1]
        if table != "snapshot" and not last:  # a snapshot is derived again
            assert complaints(dropped), f"{table}: {row[:3]} dropped"
        doubled = Path(shutil.copy(lived_in, tmp_path / "doubled.db"))
        first = names[0] if table != "block" else "entry"
        content = ", ".join(f"'{row[1]}x'" if table == "ledger" else "1000" if n == first else n for n in names)
        try:
            edited(doubled, f"INSERT INTO {table} SELECT {content} FROM {table} WHERE rowid = {row[0]}")
        except sqlite3.IntegrityError:
            continue  # the database itself refuses it
        assert complaints(doubled), f"{table}: {row[:3]} doubled"


@pytest.mark.parametrize("field", ["time", "run", "meta", "classes", "hash"])
def test_entries_that_change_places_are_noticed(file: Path, field: str) -> None:
    """Two reservations alike but for run and charges: one column of each becomes the other's."""
    found = [row for row in rows(file, "entry") if row[4] in ("three", "four")]
    place = 1 + [name for there, name in COLUMNS if there == "entry"].index(field)
    (first, one), (second, other) = ((row[1], row[place]) for row in found)
    for seq, value in ((first, 0), (second, one), (first, other)):
        edited(file, f"UPDATE entry SET {field} = ? WHERE seq = {seq}", values=(value,))
    assert complaints(file)


@pytest.mark.parametrize("times", [30, pytest.param(500, marks=pytest.mark.slow)])
def test_bits_turned_over_anywhere_in_the_file_are_noticed_or_change_nothing(
    lived_in: Path, tmp_path: Path, times: int
) -> None:
    """Free pages and the rest of half-filled ones are read by nobody."""
    honest, content = {name: rows(lived_in, name) for name in TABLES}, lived_in.read_bytes()
    chance, noticed = random.Random(times), 0
    for _ in range(times):
        place = chance.randrange(len(content))
        file = tmp_path / "purses.db"
        file.write_bytes(content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :])
        file.chmod(0o600)
        if complaints(file):
            noticed += 1
            continue
        assert {name: rows(file, name) for name in TABLES} == honest, f"byte {place}"
    assert noticed > times // 12


PLACE = {"rung": 0, "status": SIZE, "until": 2 * SIZE, "spent": 10 * SIZE, "capped": (10 + 8 * 3) * SIZE}


@pytest.mark.parametrize("field", PLACE)
def test_a_snapshot_that_bears_its_mark_and_is_wrong_is_noticed(
    field: str, fresh: Callable[..., pp.Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin is a version that writes down something else than what the entries say, under the ledger's key."""
    honest = Standing.packed

    def wrong(self: Standing, position: int) -> bytes:
        payload = bytearray(honest(self, position))
        payload[PLACE[field]] ^= 1
        return bytes(payload)

    def use(ledger: pp.Ledger) -> list[str]:
        ledger.join(["a"], 1.0)
        ledger.withdraw(["a"])
        ledger.join(["a"], 1.0, valid_until="2100-01-01")
        for number in range(2):
            ledger.charge(f"run {number}", ledger.members(["a"]), flat(5), [0], at_most=0.1)
        return ledger.verify().problems

    monkeypatch.setattr(standing, "SNAPSHOT_EVERY", 2)
    assert use(fresh("honest.db")) == []
    monkeypatch.setattr(Standing, "packed", wrong)
    assert any("snapshot" in one for one in use(fresh("twin.db")))


class TestWhatOnlyAnAnchorTells:
    def test_the_end_of_the_chain_is_cut_off(self, file: Path, lived_in: Path) -> None:
        last = rows(file, "entry")[-1][1]
        edited(file, f"DELETE FROM block WHERE entry = {last}", f"DELETE FROM entry WHERE seq = {last}")
        edited(file, "DELETE FROM snapshot")
        assert complaints(file) == []
        anchor = file.with_name("anchor.json")
        pp.Ledger.open(f"sqlite:///{lived_in}", key=KEY).write_anchor(anchor)
        assert "old or forked copy" in complaints(file, anchor=anchor)[0]

    def test_the_chain_is_written_anew(self, file: Path, lived_in: Path) -> None:
        """By somebody who makes a charge smaller and hashes everything after it again."""
        found = next(row for row in rows(file, "entry") if row[4] == "two")
        edited(file, f"UPDATE entry SET classes = ? WHERE seq = {found[1]}", values=(flat(1, 1).tobytes(),))
        caps = found[5].replace("[9,", "[1,").replace(",9,", ",1,").replace(",9]", ",1]")
        edited(file, f"UPDATE entry SET meta = ? WHERE seq = {found[1]}", values=(caps,))
        edited(file, "DELETE FROM snapshot")
        assert complaints(file)
        previous = bytes(32)
        with closing(sqlite3.connect(file)) as connection, connection:
            every = connection.execute("SELECT seq, time, kind, run, meta, classes FROM entry ORDER BY seq")
            for seq, *said in every.fetchall():
                query = "SELECT number, payload FROM block WHERE entry = ? ORDER BY number"
                own = entry_hash(previous, seq, *said, connection.execute(query, (seq,)).fetchall())
                change = "UPDATE entry SET previous = ?, hash = ? WHERE seq = ?"
                connection.execute(change, (previous, own, seq))
                previous = own
        assert complaints(file) == []
        anchor = file.with_name("anchor.json")
        pp.Ledger.open(f"sqlite:///{lived_in}", key=KEY).write_anchor(anchor)
        assert "old or forked copy" in complaints(file, anchor=anchor)[0]

    def test_an_old_copy_has_no_complaints(self, lived_in: Path) -> None:
        old, anchor = lived_in.with_name("old.db"), lived_in.with_name("ahead.json")
        assert complaints(old, anchor=anchor) == []
        pp.Ledger.open(f"sqlite:///{lived_in}", key=KEY).write_anchor(anchor)
        assert complaints(old) == []
        assert "old or forked copy" in complaints(old, anchor=anchor)[0]
