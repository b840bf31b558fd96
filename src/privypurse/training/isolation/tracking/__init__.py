"""Whose row is whose, from the loader's batch to the loss: see `tensor`."""
