"""Where a ledger lies: SQLite or PostgreSQL, one writer at a time, readers who see one moment."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import time_ns
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from privypurse._storage import resolved, synchronise_folder
from privypurse.errors import InvalidInput, PrivyPurseError, Unsupported

_WAIT = 60  # seconds for another writer
_FRESH = 3 * 10**9  # nanoseconds; the coarsest clocks of file systems tick every two seconds
_CACHE = 64_000  # KiB at most; the index of a million keyed ids fits, and they join in two thirds of the time
_WRITERS = 0x7072697679  # PostgreSQL's advisory lock that a writer holds to the end of its transaction
_MIGRATING = threading.Lock()  # Alembic keeps what it is doing in module variables
_HELD = (
    "what this call was to write is either there as a whole or not at all; nothing may be released on its account "
    "before it succeeds. Called again with the same run id it charges once"
)


_DURABLE = "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
"""A charge is on disk before anything is released on it, whatever the server's default."""


class Database:
    """Transactions on a ledger's tables.

    Guarantee: writers come one after another (SQLite: BEGIN IMMEDIATE; PostgreSQL: an advisory lock), what a writer
    wrote is on disk as a whole when it ends (SQLite: write-ahead log, synchronous FULL) or not at all, and a reader
    sees the tables as of one moment. A SQLite file is for its owner's eyes and never made by opening it.
    """

    def __init__(self, url: str) -> None:
        try:
            self._url = make_url(url)
        except ArgumentError:
            raise InvalidInput(f"url is {url!r}; give sqlite:///FILE or postgresql://USER@HOST/DATABASE") from None
        self.path: Path | None = None
        self._process = os.getpid()
        match self._url.get_backend_name():
            case "sqlite":
                if not self._url.database or self._url.database == ":memory:":
                    raise InvalidInput(f"url is {url!r}, which keeps nothing; give sqlite:///FILE")
                self.path = resolved(self._url.database)
                self._engine = _sqlite(self.path)
            case "postgresql":
                self._engine = _postgresql(self._url)
            case other:
                raise InvalidInput(f"url is for {other!r}; give sqlite:///FILE or postgresql://USER@HOST/DATABASE")

    def __str__(self) -> str:
        return self._url.render_as_string(hide_password=True)

    @property
    def engine(self) -> Engine:
        if os.getpid() != self._process:  # a fork must not talk over its parent's connections
            self._engine.dispose(close=False)
            self._process = os.getpid()
        return self._engine

    def mark(self) -> tuple[tuple[int, ...] | None, ...] | None:
        """What a commit changes about a SQLite file and its log: while it stays equal nobody has written.

        None where that cannot be told: on PostgreSQL, and while the last write is so fresh that another one may bear
        the same time.
        """
        if self.path is None:
            return None
        found = [_stat(self.path), _stat(Path(f"{self.path}-wal"))]
        latest = max((one.st_mtime_ns for one in found if one is not None), default=0)
        if time_ns() - latest < _FRESH:
            return None
        return tuple(None if one is None else (one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for one in found)

    @contextmanager
    def reader(self) -> Iterator[Connection]:
        with self._told("read"), self.engine.connect() as plain:
            connection = plain
            if self.path is None:
                connection = plain.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    @contextmanager
    def writer(self) -> Iterator[Connection]:
        with self._told(f"written; {_HELD}"), self.engine.connect() as plain:
            connection = plain.execution_options(privypurse_writer=True)
            if self.path is None:  # whatever the server's default: each statement sees what the writer before wrote
                connection = connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                if self.path is None:
                    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _WRITERS})
                    connection.execute(sa.text(_DURABLE))
                yield connection

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """What a database says, in the words of this package."""
        if self.path is not None:
            _require_file(self.path)
        try:
            yield
        except DBAPIError as error:
            raise PrivyPurseError(f"{_first_line(error.orig)}: the ledger {self} could not be {what}") from error
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:  # and of a cursor of the driver's
            raise PrivyPurseError(f"{_first_line(error)}: the ledger {self} could not be {what}") from error

    def require_new(self) -> None:
        """Raise where a SQLite ledger's file is there: whoever makes one a second time has to hear of that first."""
        if self.path is not None and self.path.exists():
            raise InvalidInput(
                f"{self.path} is there already, and a ledger is made once. Use it as it is: commands take --ledger "
                f"{self} (`privypurse ledger show` tells what it is), Python pp.Ledger.open; for another ledger name "
                "another file"
            )

    def make_file(self) -> None:
        """The empty file of a new SQLite ledger, for its owner's eyes before anything is in it."""
        if self.path is None:
            return
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            with closing(sqlite3.connect(self.path)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")  # the file remembers it
        except FileExistsError:
            raise InvalidInput(f"{self.path} is there already; name another file") from None
        except OSError as error:
            raise InvalidInput(f"{self.path} cannot be made: {error.strerror}; is there such a folder?") from None
        synchronise_folder(self.path.parent)

    def remove_file(self) -> None:
        """Of a ledger that could not be made."""
        if self.path is not None:
            for ending in ("", "-wal", "-shm"):
                Path(f"{self.path}{ending}").unlink(missing_ok=True)

    def revision(self, connection: Connection) -> str | None:
        """Which migration the tables are at; None where there are no tables."""
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()

    def is_current(self, connection: Connection) -> bool:
        return self.revision(connection) == ScriptDirectory.from_config(_alembic()).get_current_head()

    def migrate(self, connection: Connection) -> None:
        """Bring the tables to this version's; tables of a newer one are refused."""
        config = _alembic()
        config.attributes["connection"] = connection
        scripts, now = ScriptDirectory.from_config(config), self.revision(connection)
        try:
            if now is not None:
                scripts.get_revision(now)
        except CommandError:
            raise InvalidInput(
                f"the ledger {self} was written by a newer version of Privy Purse (tables {now}); update this one"
            ) from None
        with _MIGRATING:
            command.upgrade(config, "head")


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def _sqlite(path: Path) -> Engine:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw", uri=True, timeout=_WAIT, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA cache_size=-{_CACHE}")
        return connection

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("privypurse_writer")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql(url: sa.URL) -> Engine:
    try:
        return sa.create_engine(url.set(drivername="postgresql+psycopg"), pool_pre_ping=True, hide_parameters=True)
    except (ModuleNotFoundError, NoSuchModuleError):
        raise Unsupported("a ledger on PostgreSQL needs psycopg: pip install '.[postgres]' in a clone") from None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _require_file(path: Path) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise InvalidInput(
            f"the ledger {path} is not there ({error.strerror}); check the path, put it back, or make a new one with "
            "`privypurse ledger init` or Ledger.create. A new one starts with full purses, so it is for other people "
            "only"
        ) from None
    if not stat.S_ISREG(found.st_mode):
        raise InvalidInput(f"the ledger {path} is no file; name one")
    if found.st_nlink > 1:  # each name has a write-ahead log and locks of its own: two writers would not meet
        raise InvalidInput(f"the ledger {path} has other names too (hard links); remove them, and keep one name")
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(path, stat.S_IMODE(found.st_mode) & 0o700)


def _first_line(error: Any) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
