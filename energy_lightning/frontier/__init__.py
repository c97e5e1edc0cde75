"""Time-energy frontiers, budgets and composition (floor 1: numpy and scipy only)."""
