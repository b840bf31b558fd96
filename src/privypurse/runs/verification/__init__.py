"""A finished run looked at again: what was certified is recomputed, and every file compared with what was written."""
