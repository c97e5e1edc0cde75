"""Collectives with an SM count, one protocol for every backend (floor 3)."""
