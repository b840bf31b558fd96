"""Attacks that test the promise: what an attacker really finds out, beside what a plan claims."""
