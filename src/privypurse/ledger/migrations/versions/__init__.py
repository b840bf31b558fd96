"""How the ledger's tables came to be, one step a file (Alembic)."""
