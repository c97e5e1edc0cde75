"""Process layout, gradient reduction and clipping: torch only, no Lightning."""
