"""Ask/tell search over schedules and frequencies (floor 1: numpy only)."""
