"""A ledger as a whole: made, opened against its anchor, read and written as one chain, verified and copied."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from privypurse.budgets.budgets import DEFAULT_DELTA
from privypurse.errors import InvalidInput, PrivyPurseError
from privypurse.ledger import anchors, copies, entries, history, keys, row_purses, schema, verify
from privypurse.ledger.chain import Anchor, canonical
from privypurse.ledger.copies import Loss
from privypurse.ledger.database import Database
from privypurse.ledger.keys import KeySource
from privypurse.ledger.lifetime import Lifetime, Rung
from privypurse.ledger.verify import Verified

ADVERSARIES = ("server", "public")
_UNIT = "person"


@dataclass(frozen=True)
class Shown:
    """What a ledger is, and how far it has come: no balance of anybody."""

    id: str
    unit: str
    adversary: str
    rungs: tuple[Rung, ...]
    set_apart: float
    entries: int
    runs: int
    open_runs: int
    head: str


class OpenLedger:
    """What every use of a ledger shares: the database, the key, and the chain as far as it was seen."""

    def __init__(self, database: Database, key: keys.Key | None, anchor: str | Path | None = None) -> None:
        """Not for users: `Ledger.create` and `Ledger.open` make one."""
        self._database, self._key = database, key
        self._anchor_path = None if anchor is None else Path(anchor)
        self._seen: entries.Head | None = None
        self._consents: tuple[Any, int] | None = None
        with database.reader() as connection:
            self._head(connection, None)
            row = connection.execute(sa.select(schema.ledger)).one()
        self.id, self.adversary = str(row.id), str(row.adversary)
        try:
            terms = json.loads(row.terms)
            self.lifetime = Lifetime(tuple(Rung(*rung) for rung in terms["rungs"]), terms["set_apart"])
            self.about = str(terms.get("about", ""))
            """Whose purses these are, where whoever made the ledger said so."""
        except (ValueError, KeyError, TypeError) as error:
            raise PrivyPurseError(f"the terms of the ledger {database} are damaged ({error!r}); restore it") from None
        self.by_row = row_purses.by_row(self.about)
        """Whether its purses are rows' and not people's: nobody joins later."""
        self.unit = row_purses.UNIT if self.by_row else str(row.unit)  # those made before it was told say "person"
        self._takes_ids = not row_purses.by_number(self.about)
        if key is not None:
            key.check(self.id, bytes(row.key_mark))

    def __repr__(self) -> str:
        return f"Ledger({self._database})"

    @property
    def rungs_are_public(self) -> bool:
        """Whether its rungs were named for everybody, as by `privypurse ledger init`.

        Those of a ledger that says whose purses it has follow from what these people granted.
        """
        return not self.about

    def same_as(self, other: OpenLedger) -> bool:
        """Whether both are one ledger, and not one a copy of the other."""
        one, two = self._database.path, other._database.path
        return self.id == other.id and (one == two or (one is not None and two is not None and one.samefile(two)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself: a copy of what holds it, such as scikit-learn's clone of an estimator, charges the same purses."""
        return self

    @classmethod
    def create(
        cls,
        url: str,
        rungs: Any = None,
        *,
        epsilons: Sequence[float] | None = None,
        delta: float | None = None,
        adversary: str = "server",
        set_apart: float = 0.0,
        about: str = "",
        key: KeySource = None,
        anchor: str | Path | None = None,
    ) -> Self:
        """A new ledger: its rungs as pairs (ε, δ), or ``epsilons`` with one ``delta`` (1e-5, if none is given).

        There are at most 8, rising in ε.
        ``adversary`` is whom the promise holds against: "server" (who sees who takes part in a round) or "public".
        ``set_apart`` is the share of every purse for releases known only as (ε, δ), ``about`` says whose purses these
        are. None of it can be changed later.
        ``key`` names the key file, which is made if it is not there, and belongs elsewhere than the ledger; without
        it PRIVYPURSE_LEDGER_KEY has the key or its path. ``anchor`` is a new file outside of the database, by which
        an old copy is told (see `open`). Where one of the three cannot be made, none is.
        """
        if (rungs is None) == (epsilons is None) or (epsilons is None and delta is not None):
            raise InvalidInput("give rungs= as pairs (ε, δ), or epsilons= with one delta=")
        of_all = DEFAULT_DELTA if delta is None else delta
        lifetime = Lifetime.of(rungs if epsilons is None else [(one, of_all) for one in epsilons], set_apart)
        if adversary not in ADVERSARIES:
            raise InvalidInput(f"adversary is {adversary!r}; choose {' or '.join(map(repr, ADVERSARIES))}")
        database = Database(url)
        database.require_new()
        if anchor is not None:
            anchors.refuse_there_already(anchor)
        with keys.found_or_made(key) as secret, _made(database, anchor) as connection:
            _first_entry(connection, lifetime, adversary, about, secret)
        return cls(database, secret, anchor).with_its_rows()  # whose data are these, if not its maker's

    @classmethod
    def open(
        cls, url: str, key: KeySource = None, anchor: str | Path | None = None, *, new_anchor: bool = False
    ) -> Self:
        """A ledger that there is. Without its key it can be verified and shown, but knows nobody by id.

        ``anchor`` is a file outside of the database that says how far it had come: an older or forked copy is
        refused, and the file follows every change from here on. The folder of a run under this ledger does, too; its
        anchor stays as it is. If none is named, it is the one that lies beside a SQLite file under its name, with
        ".anchor" at the end. Without one an old copy cannot be told. A file that is not there is refused, since it
        may have been lost; ``new_anchor`` begins one.
        """
        if new_anchor:
            if anchor is None:
                raise InvalidInput("new_anchor begins an anchor; name its file as anchor=")
            anchors.refuse_there_already(anchor)
        database = Database(url)
        _require_tables(database)
        anchor = anchors.beside(database.path) if anchor is None else anchor
        if anchor is not None and not new_anchor:
            with database.reader() as connection:
                anchors.require(connection, anchors.read(anchor), anchor)
        ledger = cls(database, keys.found(key), anchors.follows(anchor))
        if new_anchor and anchor is not None:
            anchors.begin(anchor, ledger.anchor())
        return ledger

    def with_its_rows(self) -> Self:
        """Itself, where ids are numbers of its rows: for who has compared the data with those that it was made for.

        Opened without that, a ledger of rows by number charges nobody: ids that people have may be numbers too, and
        they would pay from a stranger's purse.
        """
        self._takes_ids = True
        return self

    def _require_takes_ids(self) -> None:
        if not self._takes_ids:
            row_purses.refuse("ids name people", self.about)

    def _require_takes_people(self) -> None:
        if self.by_row:
            row_purses.refuse("the table names people by id", self.about)

    @classmethod
    def recover_copy(
        cls, url: str, *, anchor: str | Path, key: KeySource = None, export: str | Path | None = None
    ) -> Self:
        """Go on with an old copy whose later entries are lost: `open` refuses it by its anchor.

        Entries that an ``export`` proves (they follow in the chain) are taken in. If they reach the anchor nothing
        was lost. Else anybody may have been charged since, so everybody is frozen: no further charge to them, ever
        (`loss_of_copy` says beforehand how many). The anchor is the copy's from here on, and the ledger that it was
        of is refused by it; that in the folder of a run stays as it is, and cannot tell the two apart. Nor does it
        know who joined after the run: then nobody new can join.
        """
        _recover(url, anchor, export, write=True)
        recovered = cls.open(url, key, anchor)
        recovered._keep(recovered.anchor())
        return recovered

    @classmethod
    def loss_of_copy(cls, url: str, *, anchor: str | Path, export: str | Path | None = None) -> Loss:
        """What would be lost by `recover_copy`; nothing is written."""
        return _recover(url, anchor, export, write=False)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        seen = self._seen  # before the transaction begins: another thread may go on meanwhile
        with self._database.reader() as connection:
            self._head(connection, seen)
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        seen = self._seen
        with self._database.writer() as connection:
            self._head(connection, seen)
            self._require_kept(connection)
            yield connection
            head, kept = entries.last(connection), copies.anchor(connection)
        self._seen = head  # only now: what was not committed is not there
        self._keep(kept)

    def _head(self, connection: Connection, seen: entries.Head | None) -> None:
        """Check that this is the chain seen before, and remember how far it has come."""
        head = entries.last(connection)
        if head is None:
            raise InvalidInput(f"{self._database} has no entries; it is no ledger, or making it was broken off")
        if seen is not None and seen != head and not entries.contains(connection, seen.seq, seen.hash):
            raise PrivyPurseError(
                f"the ledger {self._database} is not the one it was: an entry seen before is missing or changed. Was "
                "an older copy put in its place? Nothing was done"
            )
        self._seen = head

    def _require_kept(self, connection: Connection) -> None:
        """Raise if a copy of this ledger went on under the same anchor meanwhile."""
        if self._anchor_path is not None and self._anchor_path.exists():
            anchors.require(connection, Anchor.read(self._anchor_path), self._anchor_path)

    def _time(self) -> int:
        """Now, or the time of the latest entry seen if that is later."""
        return entries.not_before(0 if self._seen is None else self._seen.time)

    def _keep(self, anchor: Anchor) -> None:
        """Write the anchor that was given at opening, unless another process has got further meanwhile."""
        path = self._anchor_path
        if path is not None and not (path.exists() and Anchor.read(path).entry >= anchor.entry):
            anchor.write(path)

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """The grants there are, rising in ε."""
        return self.lifetime.rungs

    def require_terms(self, *, unit: str | None = None, adversary: str) -> None:
        """Raise unless this ledger's promise is against this adversary, and for this unit where one is given."""
        for name, ours, theirs in (("unit", self.unit, unit or self.unit), ("adversary", self.adversary, adversary)):
            if ours != theirs:
                raise InvalidInput(
                    f"{name} is {theirs!r}, but the purses of this ledger are a promise with {name} {ours!r}; use a "
                    "ledger made for it. Across ledgers ε's add up"
                )

    def show(self) -> Shown:
        with self._reading() as connection:
            every, head = history.runs(connection), entries.last(connection)
        assert head is not None
        return Shown(
            id=self.id,
            unit=self.unit,
            adversary=self.adversary,
            rungs=self.rungs,
            set_apart=self.lifetime.set_apart,
            entries=head.seq,
            runs=len(every),
            open_runs=sum(run.settled is None for run in every),
            head=head.hash.hex(),
        )

    def verify(self) -> Verified:
        """Recompute the chain and everybody's sums from raw entries, by other code than that which charges."""
        with self._reading() as connection:
            return verify.verified(connection, None if self._key is None else self._key.mark)

    def anchor(self) -> Anchor:
        """How far the ledger has come. Keep it outside of the database."""
        with self._reading() as connection:
            return copies.anchor(connection)

    def require_latest(self, folder: str | Path) -> None:
        """Raise if a run in this folder, or in one beside it, knows more of this ledger than there is in it."""
        with self._reading() as connection:
            for file, kept in anchors.of_runs(Path(folder)):
                if kept.ledger == self.id:
                    anchors.require(connection, kept, file)

    @property
    def anchor_file(self) -> Path | None:
        """The anchor that this was opened by and that follows every change, named or beside it; None without one."""
        return self._anchor_path

    @property
    def folder(self) -> Path | None:
        """Where a SQLite ledger's file lies; None on a server."""
        return None if self._database.path is None else self._database.path.parent

    def write_anchor(self, path: str | Path) -> None:
        self.anchor().write(path)

    def require_anchor(self, path: str | Path) -> None:
        """Raise if this is an older or forked copy of the ledger that the anchor in this file is of."""
        with self._reading() as connection:
            anchors.require(connection, anchors.read(path), path)

    def export(self, path: str | Path) -> None:
        """All entries and keyed ids as JSON lines, for its owner's eyes."""
        with self._reading() as connection:
            copies.export(connection, path)

    def backup(self, path: str | Path) -> None:
        """A copy of the whole ledger as a SQLite file, as of one moment; open it by ``sqlite:///`` and its path."""
        with self._reading() as connection:
            copies.backup(connection, path)


@contextmanager
def _made(database: Database, anchor: str | Path | None) -> Iterator[Connection]:
    """A new ledger's tables, to be filled, and its anchor when they are: all of it, or nothing."""
    begun: Path | None = None
    database.make_file()
    try:
        with database.writer() as connection:
            if database.revision(connection) is not None:
                raise InvalidInput(f"{database} has a ledger already; open it, or name another database")
            database.migrate(connection)
            yield connection
            if anchor is not None:
                anchors.begin(anchor, copies.anchor(connection))
                begun = Path(anchor)
    except BaseException:
        if begun is not None:
            begun.unlink(missing_ok=True)
        database.remove_file()
        raise


def _require_tables(database: Database) -> None:
    with database.reader() as connection:
        if database.revision(connection) is None:
            raise InvalidInput(f"{database} holds no ledger; `privypurse ledger init` or Ledger.create makes one")
        if database.is_current(connection):
            return
    with database.writer() as connection:
        database.migrate(connection)


def _recover(url: str, anchor: str | Path, export: str | Path | None, *, write: bool) -> Loss:
    database = Database(url)
    _require_tables(database)
    target = anchors.read(anchor)
    with database.writer() as connection:
        tried = connection.begin_nested()
        found = copies.recover(connection, target, export, latest=anchors.follows(anchor) is not None)
        tried.commit() if write else tried.rollback()
    return found


def _first_entry(connection: Connection, lifetime: Lifetime, adversary: str, about: str, key: keys.Key) -> None:
    name = str(uuid.uuid4())
    terms = {
        "rungs": [[rung.epsilon, rung.delta, rung.order, rung.limit] for rung in lifetime.rungs],
        "set_apart": lifetime.set_apart,
        **({"about": about} if about else {}),
    }
    row = {"id": name, "unit": _UNIT, "adversary": adversary, "terms": canonical(terms)}
    connection.execute(schema.ledger.insert().values(**row, key_mark=key.mark(name.encode())))
    entries.append(connection, "create", {**row, "terms": terms})
