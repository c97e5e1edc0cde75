"""Measuring windows and the measurement store (floor 3)."""
