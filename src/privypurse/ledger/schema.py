"""The ledger's tables, as code reads and writes them. `migrations/` makes them; a test compares the two."""

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, LargeBinary, MetaData, Table, Text
from sqlalchemy import UniqueConstraint as Unique

METADATA = MetaData()

ledger = Table(
    "ledger",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("unit", Text, nullable=False),
    Column("adversary", Text, nullable=False),
    Column("terms", Text, nullable=False),  # JSON: rungs and the share set apart
    Column("key_mark", LargeBinary, nullable=False),
)

person = Table(
    "person",
    METADATA,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("keyed", LargeBinary, nullable=False, unique=True),
)

entry = Table(
    "entry",
    METADATA,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("time", BigInteger, nullable=False),  # microseconds since 1970
    Column("kind", Text, nullable=False),
    Column("run", Text),
    Column("meta", Text, nullable=False),  # JSON
    Column("classes", LargeBinary),  # int64, little-endian: what each class is charged
    Column("previous", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Unique("run", "kind", name="entry_run_kind"),
    Index("entry_kind", "kind", "seq"),
)

block = Table(
    "block",
    METADATA,
    Column("number", Integer, nullable=False, primary_key=True),
    Column("entry", BigInteger, ForeignKey("entry.seq"), nullable=False, primary_key=True),
    Column("payload", LargeBinary, nullable=False),
    Index("block_entry", "entry", "number"),
)

snapshot = Table(
    "snapshot",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("entry", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("mark", LargeBinary, nullable=False),
)

APPEND_ONLY = ("ledger", "person", "entry", "block")
