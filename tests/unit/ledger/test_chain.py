"""What was written stays: triggers, the chain of hashes, anchors against old copies, backups and exports."""

from __future__ import annotations

import ast
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from privypurse.ledger import verify
from privypurse.ledger.chain import Anchor

KEY = bytes(range(32))


def flat(*units: int) -> np.ndarray:
    return np.repeat(np.array(units)[:, None], 3, axis=1)


@pytest.fixture(scope="module")
def used_template(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("used") / "used.db"
    shutil.copy(template, path)
    ledger = pp.Ledger.open(f"sqlite:///{path}", key=KEY)
    ledger.join(["a", "b"], [0.5, 1.0])
    ledger.reserve("one", ledger.members(["a", "b"]), flat(5, 6), [0, 1], at_most=0.1).settle(flat(3), [0, 0])
    ledger.charge("two", ledger.members(["b"]), flat(5), [0])
    ledger.reserve("three", ledger.members(["b"]), flat(7), [0])
    ledger.withdraw(["a"])
    assert ledger.verify().problems == []
    return path


@pytest.fixture
def used(used_template: Path, tmp_path: Path) -> pp.Ledger:
    shutil.copy(used_template, tmp_path / "purses.db")
    return pp.Ledger.open(f"sqlite:///{tmp_path / 'purses.db'}", key=KEY)


def file_of(ledger: pp.Ledger) -> Path:
    assert ledger._database.path is not None
    return ledger._database.path


def tampered(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize("table", ["ledger", "person", "entry", "block"])
@pytest.mark.parametrize("change", ["DELETE FROM {}", "UPDATE {} SET rowid = rowid"])
def test_what_is_written_cannot_be_changed(used: pp.Ledger, table: str, change: str) -> None:
    with sqlite3.connect(file_of(used)) as connection, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(change.format(table))


TAMPERING = {
    "a time": ["UPDATE entry SET time = time + 1 WHERE seq = 4"],
    "a kind": ["UPDATE entry SET kind = 'note' WHERE seq = 5"],
    "a run": ["UPDATE entry SET run = 'other' WHERE seq = 5"],
    "what is said": ["UPDATE entry SET meta = replace(meta, '0.1', '0.2') WHERE seq = 3"],
    "charges": ["UPDATE entry SET classes = zeroblob(length(classes)) WHERE seq = 5"],
    "a block": ["UPDATE block SET payload = (SELECT payload FROM block WHERE entry = 2) WHERE entry = 4"],
    "a block gone": ["DELETE FROM block WHERE entry = 5"],
    "an entry gone": ["DELETE FROM block WHERE entry = 5", "DELETE FROM entry WHERE seq = 5"],
    "an entry renumbered": ["UPDATE block SET entry = 99 WHERE entry = 7", "UPDATE entry SET seq = 99 WHERE seq = 7"],
    "a hash": ["UPDATE entry SET hash = zeroblob(32) WHERE seq = 5"],
    "the hash before": ["UPDATE entry SET previous = zeroblob(32) WHERE seq = 5"],
    "the limits": ["UPDATE ledger SET terms = replace(terms, '0.5', '0.6')"],
    "the adversary": ["UPDATE ledger SET adversary = 'public'"],
    "an id of somebody else": ["UPDATE person SET keyed = zeroblob(16) WHERE number = 0"],
    "what cannot be read": ["UPDATE entry SET meta = '{' WHERE seq = 3"],
    "a person more": ["INSERT INTO person (number, keyed) VALUES (2, x'00')"],
    "a person gone": ["DELETE FROM person WHERE number = 0"],
    "a snapshot": ["INSERT INTO snapshot VALUES (0, 4, zeroblob(4096 * 58), x'00')"],
}


@pytest.mark.parametrize("name", TAMPERING)
def test_whatever_is_changed_is_found(used: pp.Ledger, name: str) -> None:
    tampered(file_of(used), *TAMPERING[name])
    assert pp.Ledger.open(str(used._database), key=KEY).verify().problems


def test_verify_shares_no_code_with_what_charges() -> None:
    tree = ast.parse(Path(verify.__file__).read_text(encoding="utf-8"))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    known = {"__future__", "hashlib", "json", "math", "struct", "dataclasses", "decimal", "typing", "numpy"}
    assert imported <= known | {"collections.abc", "sqlalchemy", "sqlalchemy.engine"}
    assert "import_module" not in Path(verify.__file__).read_text(encoding="utf-8")


class TestAnchors:
    def test_an_old_copy_is_refused_and_the_ledger_itself_is_not(self, used: pp.Ledger, tmp_path: Path) -> None:
        anchor, url = tmp_path / "run" / "anchor.json", str(used._database)
        anchor.parent.mkdir()
        used.backup(tmp_path / "old.db")
        used.write_anchor(anchor)
        old = f"sqlite:///{tmp_path / 'old.db'}"
        assert pp.Ledger.open(old, key=KEY, anchor=anchor).verify().sound  # nothing happened since
        used.charge("later", used.members(["b"]), flat(5), [0])
        used.write_anchor(anchor)
        assert pp.Ledger.open(url, key=KEY, anchor=anchor).verify().sound
        with pytest.raises(pp.InvalidInput, match="ledger recover"):
            pp.Ledger.open(old, key=KEY, anchor=anchor)
        # Without the anchor an old copy is a sound ledger with fuller purses: it cannot be told.
        assert pp.Ledger.open(old, key=KEY).verify().sound
        assert anchor.stat().st_mode & 0o077 == 0

    def test_an_anchor_follows_what_is_written(self, used: pp.Ledger, tmp_path: Path) -> None:
        anchor = tmp_path / "anchor.json"
        held = pp.Ledger.open(str(used._database), key=KEY, anchor=anchor, new_anchor=True)
        assert Anchor.read(anchor) == held.anchor()
        held.withdraw(["b"])
        assert Anchor.read(anchor).entry == held.show().entries
        assert Anchor.read(anchor).hash == held.show().head

    def test_a_copy_that_was_written_on_is_refused(self, used: pp.Ledger, tmp_path: Path) -> None:
        used.backup(tmp_path / "fork.db")
        fork = pp.Ledger.open(f"sqlite:///{tmp_path / 'fork.db'}", key=KEY)
        for ledger, name in ((used, "x"), (fork, "y"), (fork, "z")):
            ledger.charge(name, ledger.members(["b"]), flat(5), [0])
        used.write_anchor(tmp_path / "anchor.json")
        with pytest.raises(pp.InvalidInput, match="forked"):
            pp.Ledger.open(str(fork._database), key=KEY, anchor=tmp_path / "anchor.json")

    def test_of_two_copies_that_are_open_under_one_anchor_one_goes_on(self, used: pp.Ledger, tmp_path: Path) -> None:
        used.backup(tmp_path / "fork.db")
        anchor = tmp_path / "anchor.json"
        used.write_anchor(anchor)
        one, other = (
            pp.Ledger.open(url, key=KEY, anchor=anchor)
            for url in (str(used._database), f"sqlite:///{tmp_path / 'fork.db'}")
        )
        one.charge("x", one.members(["b"]), flat(5), [0])
        with pytest.raises(pp.InvalidInput, match="forked"):
            other.charge("y", other.members(["b"]), flat(5), [0])
        assert other.run("y") is None
        one.charge("z", one.members(["b"]), flat(5), [0])

    def test_an_anchor_beside_the_file_is_kept_without_being_named(self, used: pp.Ledger, tmp_path: Path) -> None:
        used.backup(tmp_path / "old.db")
        for name in ("purses.db.anchor", "purses.anchor"):
            used.write_anchor(tmp_path / name)
            held = pp.Ledger.open(str(used._database), key=KEY)
            held.charge(name, held.members(["b"]), flat(5), [0])
            assert Anchor.read(tmp_path / name).entry == held.show().entries
            (tmp_path / name).rename(
                tmp_path / f"old.db{name[len('purses.db') :]}" if "db" in name else tmp_path / "old.anchor"
            )
            with pytest.raises(pp.InvalidInput, match="forked"):
                pp.Ledger.open(f"sqlite:///{tmp_path / 'old.db'}", key=KEY)
            for left in tmp_path.glob("old*anchor"):
                left.unlink()

    def test_another_ledgers_anchor_and_no_anchor_are_told(self, used: pp.Ledger, tmp_path: Path) -> None:
        other = pp.Ledger.create(f"sqlite:///{tmp_path / 'other.db'}", [(1.0, 1e-5)], key=KEY)
        other.write_anchor(tmp_path / "other.json")
        with pytest.raises(pp.InvalidInput, match="its own anchor"):
            pp.Ledger.open(str(used._database), key=KEY, anchor=tmp_path / "other.json")
        (tmp_path / "wrong.json").write_text("{}")
        with pytest.raises(pp.InvalidInput, match="no anchor"):
            pp.Ledger.open(str(used._database), key=KEY, anchor=tmp_path / "wrong.json")

    def test_an_anchor_that_is_lost_is_not_made_again_in_silence(self, used: pp.Ledger, tmp_path: Path) -> None:
        """Else whoever puts an old copy in the ledger's place would only have to remove it."""
        url, anchor = str(used._database), tmp_path / "anchor.json"
        used.backup(tmp_path / "old.db")
        used.write_anchor(anchor)
        used.charge("later", used.members(["b"]), flat(5), [0])
        anchor.unlink()
        for which in (url, f"sqlite:///{tmp_path / 'old.db'}"):
            with pytest.raises(pp.InvalidInput, match=r"anchor\.json is not there. If it was lost, look for it"):
                pp.Ledger.open(which, key=KEY, anchor=anchor)
        with pytest.raises(pp.InvalidInput, match="is not there"):
            pp.Ledger.recover_copy(url, key=KEY, anchor=anchor)
        assert not anchor.exists()

    def test_a_new_anchor_takes_no_ones_place(self, used: pp.Ledger, tmp_path: Path) -> None:
        url, anchor = str(used._database), tmp_path / "anchor.json"
        used.write_anchor(anchor)
        before = anchor.read_bytes()
        with pytest.raises(pp.InvalidInput, match="is there already"):
            pp.Ledger.open(url, key=KEY, anchor=anchor, new_anchor=True)
        with pytest.raises(pp.InvalidInput, match="name its file as anchor="):
            pp.Ledger.open(url, key=KEY, new_anchor=True)
        with pytest.raises(pp.InvalidInput, match="is there already"):
            pp.Ledger.create(f"sqlite:///{tmp_path / 'new.db'}", [(1.0, 1e-5)], key=KEY, anchor=anchor)
        assert not (tmp_path / "new.db").exists()
        assert anchor.read_bytes() == before

    def test_the_folder_of_a_run_tells_an_old_copy_and_stays_as_it_was(self, used: pp.Ledger, tmp_path: Path) -> None:
        run, old, url = tmp_path / "run", tmp_path / "old.db", str(used._database)
        used.backup(old)
        used.charge("later", used.members(["b"]), flat(5), [0])
        run.mkdir()
        with pytest.raises(pp.InvalidInput, match=r"run/anchor\.json is not there"):
            pp.Ledger.open(url, key=KEY, anchor=run)
        used.write_anchor(run / "anchor.json")
        before = (run / "anchor.json").read_bytes()
        held = pp.Ledger.open(url, key=KEY, anchor=run)
        held.charge("even later", held.members(["b"]), flat(5), [0])
        assert (run / "anchor.json").read_bytes() == before
        with pytest.raises(pp.InvalidInput, match="old or forked copy"):
            pp.Ledger.open(f"sqlite:///{old}", key=KEY, anchor=run)

    def test_runs_in_the_folder_and_beside_it_tell_an_old_copy(self, used: pp.Ledger, tmp_path: Path) -> None:
        used.backup(tmp_path / "old.db")
        old = pp.Ledger.open(f"sqlite:///{tmp_path / 'old.db'}", key=KEY)
        used.charge("later", used.members(["b"]), flat(5), [0])
        for name in ("of another", "broken", "none"):
            (tmp_path / "runs" / name).mkdir(parents=True)
        pp.Ledger.create(f"sqlite:///{tmp_path / 'other.db'}", [(1.0, 1e-5)], key=KEY).write_anchor(
            tmp_path / "runs/of another/anchor.json"
        )
        (tmp_path / "runs/broken/anchor.json").write_text("{}")
        old.require_latest(tmp_path / "runs" / "next")
        (tmp_path / "runs" / "first").mkdir()
        used.write_anchor(tmp_path / "runs/first/anchor.json")
        for folder in ("first", "next"):
            used.require_latest(tmp_path / "runs" / folder)
            with pytest.raises(pp.InvalidInput, match=r"old or forked copy.*first/anchor\.json"):
                old.require_latest(tmp_path / "runs" / folder)
        old.require_latest(tmp_path / "elsewhere" / "next")

    def test_an_old_copy_put_in_its_place_is_noticed_by_who_has_it_open(
        self, used: pp.Ledger, tmp_path: Path
    ) -> None:
        used.backup(tmp_path / "old.db")
        used.charge("later", used.members(["b"]), flat(5), [0])
        who = used.members(["b"])
        shutil.copy(tmp_path / "old.db", file_of(used))
        with pytest.raises(pp.PrivyPurseError, match="older copy"):
            used.balances(who)
        with pytest.raises(pp.PrivyPurseError, match="older copy"):
            used.charge("again", who, flat(5), [0])


class TestRecoveringACopy:
    @pytest.fixture
    def lost(self, used: pp.Ledger, tmp_path: Path) -> Callable[[bool], pp.Ledger]:
        """The ledger goes on, then only a copy from before is left."""

        def lose(joining: bool) -> pp.Ledger:
            used.backup(tmp_path / "old.db")
            used.charge("later", used.members(["b"]), flat(50), [0])
            if joining:
                used.join(["c"], 1.0)
            used.write_anchor(tmp_path / "anchor.json")
            used.export(tmp_path / "export.jsonl")
            return used

        return lose

    def recovered(self, tmp_path: Path, **more: object) -> pp.Ledger:
        url = f"sqlite:///{tmp_path / 'old.db'}"
        return pp.Ledger.recover_copy(url, key=KEY, anchor=tmp_path / "anchor.json", **more)

    @pytest.mark.parametrize("joining", [False, True])
    def test_with_all_later_entries_nothing_is_lost(self, lost: Callable, tmp_path: Path, joining: bool) -> None:
        whole = lost(joining)
        copy = self.recovered(tmp_path, export=tmp_path / "export.jsonl")
        assert copy.show() == whole.show()
        assert copy.verify().sound
        assert (copy.balances(copy.members(["b"])) == whole.balances(whole.members(["b"]))).all()

    def test_without_them_everybody_is_frozen_and_new_people_may_join(self, lost: Callable, tmp_path: Path) -> None:
        lost(False)
        copy = self.recovered(tmp_path)
        assert copy.verify().sound
        assert not copy.charge("one more", copy.members(["b"]), flat(1), [0]).admitted.any()
        copy.change(["b"], 4.0)
        assert not copy.charge("yet another", copy.members(["b"]), flat(1), [0]).admitted.any()
        copy.join(["c"], 1.0)
        assert copy.charge("of a new one", copy.members(["c"]), flat(1), [0]).admitted.all()
        assert copy.verify().sound
        again = pp.Ledger.open(str(copy._database), key=KEY, anchor=tmp_path / "anchor.json")
        assert again.show() == copy.show()

    @pytest.mark.parametrize("joining", [False, True])
    def test_anchors_of_lost_runs_are_content_where_everybody_is_frozen(
        self, used: pp.Ledger, tmp_path: Path, joining: bool
    ) -> None:
        """A run folder from between the copy and the anchor must not lock a recovered ledger out for good."""
        used.backup(tmp_path / "old.db")
        if joining:
            used.join(["c"], 1.0)
        used.charge("between", used.members(["b"]), flat(5), [0])
        used.write_anchor(tmp_path / "between.json")
        used.charge("later", used.members(["b"]), flat(5), [0])
        used.write_anchor(tmp_path / "anchor.json")
        copy = self.recovered(tmp_path)
        pp.Ledger.open(str(copy._database), key=KEY, anchor=tmp_path / "between.json")
        used.charge("beside", used.members(["b"]), flat(5), [0])
        used.charge("it", used.members(["b"]), flat(5), [0])
        used.write_anchor(tmp_path / "after.json")  # whoever went on with the lost one
        with pytest.raises(pp.InvalidInput, match="old or forked"):
            pp.Ledger.open(str(copy._database), key=KEY, anchor=tmp_path / "after.json")

    def test_the_folder_of_a_run_is_an_anchor_to_recover_by(self, used: pp.Ledger, tmp_path: Path) -> None:
        used.backup(tmp_path / "old.db")
        used.charge("later", used.members(["b"]), flat(50), [0])
        (tmp_path / "run").mkdir()
        used.write_anchor(tmp_path / "run" / "anchor.json")
        before = (tmp_path / "run" / "anchor.json").read_bytes()
        copy = pp.Ledger.recover_copy(f"sqlite:///{tmp_path / 'old.db'}", key=KEY, anchor=tmp_path / "run")
        assert not copy.charge("one more", copy.members(["b"]), flat(1), [0]).admitted.any()
        copy.require_latest(tmp_path / "run")
        assert (tmp_path / "run" / "anchor.json").read_bytes() == before
        assert copy.verify().sound

    def test_the_folder_of_a_run_does_not_know_who_joined_after_it(self, used: pp.Ledger, tmp_path: Path) -> None:
        """Its anchor stays as it was when the run ended: somebody in neither may have joined since, and spent."""
        used.backup(tmp_path / "old.db")
        used.charge("later", used.members(["b"]), flat(50), [0])
        (tmp_path / "run").mkdir()
        used.write_anchor(tmp_path / "run" / "anchor.json")
        used.join(["d"], 1.0)
        used.charge("latest", used.members(["d"]), flat(50), [0])
        url = f"sqlite:///{tmp_path / 'old.db'}"
        assert pp.Ledger.loss_of_copy(url, anchor=tmp_path / "run").people
        copy = pp.Ledger.recover_copy(url, key=KEY, anchor=tmp_path / "run")
        with pytest.raises(pp.InvalidInput, match="nobody new can join"):
            copy.join(["d"], 1.0)  # with a full purse

    @pytest.mark.parametrize("own", [1, 2, 3])
    def test_of_a_copy_that_went_on_by_itself_something_is_lost(
        self, used: pp.Ledger, tmp_path: Path, own: int
    ) -> None:
        """By numbers of entries alone a copy with as many as the ledger would lack nothing."""
        used.backup(tmp_path / "old.db")
        fork = pp.Ledger.open(f"sqlite:///{tmp_path / 'old.db'}", key=KEY)
        for number in range(own):
            fork.charge(f"fork {number}", fork.members(["b"]), flat(5), [0])
        used.charge("later", used.members(["b"]), flat(5), [0])
        used.charge("latest", used.members(["b"]), flat(5), [0])
        used.write_anchor(tmp_path / "anchor.json")
        loss = pp.Ledger.loss_of_copy(f"sqlite:///{tmp_path / 'old.db'}", anchor=tmp_path / "anchor.json")
        assert loss.entries >= 1
        assert loss.frozen > 0
        copy = self.recovered(tmp_path)
        assert not copy.consenting(copy.members(["b"])).any()
        assert copy.verify().sound

    def test_an_anchor_of_a_fork_that_took_people_in_is_refused(self, used: pp.Ledger, tmp_path: Path) -> None:
        """Two copies went on; the one was recovered, and the people who joined the other were not counted as lost."""
        used.backup(tmp_path / "old.db")
        used.backup(tmp_path / "fork.db")
        fork = pp.Ledger.open(f"sqlite:///{tmp_path / 'fork.db'}", key=KEY)
        fork.join(["d"], 1.0)
        fork.write_anchor(tmp_path / "fork.json")
        used.charge("later", used.members(["b"]), flat(5), [0])
        used.charge("latest", used.members(["b"]), flat(5), [0])
        used.write_anchor(tmp_path / "anchor.json")
        copy = self.recovered(tmp_path)
        copy.join(["e"], 1.0)  # nobody was lost, by the anchor
        with pytest.raises(pp.InvalidInput, match="old or forked"):
            pp.Ledger.open(str(copy._database), key=KEY, anchor=tmp_path / "fork.json")

    def test_where_people_were_lost_nobody_new_joins(self, lost: Callable, tmp_path: Path) -> None:
        """Whoever is not in the copy may have joined and spent since."""
        lost(True)
        copy = self.recovered(tmp_path)
        with pytest.raises(pp.InvalidInput, match="nobody new can join"):
            copy.join(["c"], 1.0)
        assert copy.verify().sound

    def test_an_export_that_was_changed_is_refused(self, lost: Callable, tmp_path: Path) -> None:
        lost(True)
        export = tmp_path / "export.jsonl"
        lines = export.read_text().splitlines()
        for number, change in ((-2, {"time": 5}), (-1, {"keyed": ["00" * 16]})):
            content = json.loads(lines[number])
            content |= change
            export.write_text("\n".join([*lines[:number], json.dumps(content), *lines[number:][1:]]))
            with pytest.raises(pp.InvalidInput, match="name a right one"):
                self.recovered(tmp_path, export=export)
        export.write_text("nonsense")
        with pytest.raises(pp.InvalidInput, match="no export"):
            self.recovered(tmp_path, export=export)
        with pytest.raises(pp.InvalidInput, match="ledger recover"):  # and the copy is as it was
            pp.Ledger.open(f"sqlite:///{tmp_path / 'old.db'}", key=KEY, anchor=tmp_path / "anchor.json")

    def test_a_ledger_that_lost_nothing_is_not_recovered(self, used: pp.Ledger, tmp_path: Path) -> None:
        used.write_anchor(tmp_path / "anchor.json")
        with pytest.raises(pp.InvalidInput, match="nothing is lost"):
            pp.Ledger.recover_copy(str(used._database), key=KEY, anchor=tmp_path / "anchor.json")


def test_a_backup_is_the_same_ledger(used: pp.Ledger, tmp_path: Path) -> None:
    used.backup(tmp_path / "backup.db")
    copy = pp.Ledger.open(f"sqlite:///{tmp_path / 'backup.db'}", key=KEY)
    assert copy.show() == used.show()
    assert copy.verify() == used.verify()
    assert (tmp_path / "backup.db").stat().st_mode & 0o777 == 0o600
    with pytest.raises(pp.InvalidInput, match="there already"):
        used.backup(tmp_path / "backup.db")
    with sqlite3.connect(tmp_path / "backup.db") as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute("DELETE FROM entry")
