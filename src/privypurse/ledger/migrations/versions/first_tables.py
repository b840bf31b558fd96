"""The first tables, and triggers that keep what was written as it was written."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_APPEND_ONLY = ("ledger", "person", "entry", "block")


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "ledger",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("adversary", sa.Text(), nullable=False),
        sa.Column("terms", sa.Text(), nullable=False),
        sa.Column("key_mark", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "person",
        sa.Column("number", number, primary_key=True, autoincrement=False),
        sa.Column("keyed", sa.LargeBinary(), nullable=False, unique=True),
    )
    op.create_table(
        "entry",
        sa.Column("seq", number, primary_key=True, autoincrement=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("run", sa.Text()),
        sa.Column("meta", sa.Text(), nullable=False),
        sa.Column("classes", sa.LargeBinary()),
        sa.Column("previous", sa.LargeBinary(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.UniqueConstraint("run", "kind", name="entry_run_kind"),
    )
    op.create_index("entry_kind", "entry", ["kind", "seq"])
    op.create_table(
        "block",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("entry", sa.BigInteger(), sa.ForeignKey("entry.seq"), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", "entry"),
    )
    op.create_index("block_entry", "block", ["entry", "number"])
    op.create_table(
        "snapshot",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("entry", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("mark", sa.LargeBinary(), nullable=False),
    )
    _forbid_changes(op.get_bind().dialect.name)


def _forbid_changes(dialect: str) -> None:
    if dialect == "postgresql":
        op.execute(
            "CREATE FUNCTION privypurse_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$"
        )
        for column in ("block", "snapshot"):  # what is in there does not compress
            op.execute(f"ALTER TABLE {column} ALTER COLUMN payload SET STORAGE EXTERNAL")
    for table in _APPEND_ONLY:
        if dialect == "postgresql":
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION privypurse_append_only()"
            )
            continue
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} "
                "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
            )
