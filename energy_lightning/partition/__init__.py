"""The partitioned-overlap execution engine (floor 3)."""
