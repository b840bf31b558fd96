"""Models that somebody else trained on public data: fetched by name, checked, written out in a few lines each."""
