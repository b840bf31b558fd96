"""Alembic runs this to migrate: on the connection, and in the transaction, that the ledger gives it."""

from alembic import context

from privypurse.ledger.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
