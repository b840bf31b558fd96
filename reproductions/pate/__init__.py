"""Individualised PATE: teachers without noise, votes with noise, and a purse for everyone (Boenisch et al. 2023)."""
