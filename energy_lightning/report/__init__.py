"""Tables, plots and pages (floor 5)."""
